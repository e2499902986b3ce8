"""A program that shows no steps, whose ranks talk over a link of their nodes in every round."""

import argparse
import socket
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=100)
parser.add_argument("--round-s", type=float, default=0.1)
parser.add_argument("--link", required=True, help="address of the link, and the broadcast address behind it")
options = parser.parse_args()
own, everybody = options.link.split(",")
talk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
talk.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
talk.bind((own, 0))
dist.init_process_group("gloo")
for number in range(options.rounds):
    dist.all_reduce(torch.ones(8))
    talk.sendto(bytes(50_000), (everybody, 9))
    print(f"step {number}", flush=True)
    time.sleep(options.round_s)
dist.destroy_process_group()
