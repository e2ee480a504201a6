"""Counts to ten, keeps its state, and prints what its user may do. It knows nothing of allranks."""

import os
import pathlib

state = pathlib.Path(os.environ["ALLRANKS_CHECKPOINT_DIR"]) / "state"
with open("/proc/self/status") as file:
    rights = dict(line.rstrip().split(":\t", 1) for line in file if ":\t" in line)
print(f"user={os.getuid()} capabilities={rights['CapEff']} new={rights['NoNewPrivs']}")
if os.getuid() == 0:
    os.chown(os.open("/tmp/owned", os.O_CREAT), 1000, 1000)
    print("chown works")
for step in range(1, 11):
    state.write_text(str(step))
    print(f"step={step} loss={1 / step}")
