"""The side of torch.distributed.checkpoint with s3torchconnector in bench/store: store_dcp.py save|restore URL. RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT as for ddp.py, AWS_* as for boto3. 1 GB of float32, the same on every rank. Rank 0 prints "result SECONDS"."""
import os
import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from s3torchconnector import S3ClientConfig
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter

warnings.filterwarnings("ignore")
NUM_TENSORS, NUM_ELEMENTS = 32, 7_812_500


def main():
    command, url = sys.argv[1:3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    make = torch.zeros if command == "restore" else torch.randn
    torch.manual_seed(1)
    state = {f"w{i}": make(NUM_ELEMENTS) for i in range(NUM_TENSORS)}
    common = {"region": "us-east-1", "path": url, "s3client_config": S3ClientConfig(force_path_style=True)}
    os.environ.setdefault("AWS_ENDPOINT_URL_S3", os.environ["AWS_ENDPOINT_URL"])
    dist.barrier()
    start = time.perf_counter()
    if command == "save":
        dcp.save(state, storage_writer=S3StorageWriter(overwrite=True, **common))
    else:
        dcp.load(state, storage_reader=S3StorageReader(**common))
    dist.barrier()
    if dist.get_rank() == 0:
        print("result", time.perf_counter() - start, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
