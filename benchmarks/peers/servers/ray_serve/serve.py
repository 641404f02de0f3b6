"""Ray Serve around ``onnxruntime.InferenceSession``; its gRPC proxy has the protocol's stubs."""

import argparse
import os
import signal

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from deployment import Onnx
from ray import serve
from ray.serve.config import gRPCOptions

QUIET = {"enable_access_log": False}
SERVICER = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replica-per-thread", action="store_true")
    given = parser.parse_args()
    replicas = given.threads if given.replica_per_thread else 1
    largest = max(int(size) for size in given.batch_sizes.split(","))
    ray.init(num_cpus=given.threads, include_dashboard=False, _temp_dir=given.folder)
    serve.start(
        http_options={"host": "127.0.0.1", "port": 0},
        grpc_options=gRPCOptions(port=given.port, grpc_servicer_functions=[SERVICER]),
        logging_config=QUIET,
    )
    deployment = serve.deployment(
        Onnx,
        num_replicas=replicas,
        ray_actor_options={"num_cpus": 1},
        max_ongoing_requests=64,
        logging_config=QUIET,
    )
    serve.run(deployment.bind(given.model, given.threads // replicas, largest), name=given.name)
    print("READY", flush=True)
    signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main()
