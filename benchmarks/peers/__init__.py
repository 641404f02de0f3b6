"""Braid beside what a user would put up instead, measured from the client.

python -m benchmarks.peers --out FOLDER

__main__ ──> models     an ONNX file, requests, right answers
    ├──────> rounds ──> stands ──> hosting    a server's environment and process tree
    │                        └───> load       the client program
    └──────> records, results, report         a JSON file a case, tables
servers/     one folder a peer: peer.toml, requirements.txt, serve.py (hosting/contract.py)
"""
