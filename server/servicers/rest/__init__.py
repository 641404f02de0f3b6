"""Open Inference Protocol v2 over HTTP, with Triton's extensions: what tritonclient.http speaks.

    calls          one call: gate, trace, errors as JSON with their status
    operations     method and path of each call, and the RPC behind it
    inference      bodies of inference: JSON, and binary tensors after it
    json_reading   JSON of any form, read in pieces
    json_tensors   tensors in JSON
    json_messages  other messages in JSON
    answers        answers of inference on their way out; gzip and deflate
    openapi        the document that describes all of this

Every call is one of ``braid.server.servicers.oip``, said in JSON: the same checks, batches, errors,
tokens and limits, and answers that are equal bit by bit.
"""
