"""The GPUs of this machine and their assignment to pods."""

from __future__ import annotations

import asyncio

from allranks.local.gpus import Gpus, narrow, parse

LISTING = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaa)
GPU 1: NVIDIA H200 (UUID: GPU-bbb)
  MIG 1g.18gb     Device  0: (UUID: MIG-ccc)
  MIG 1g.18gb     Device  1: (UUID: MIG-ddd)
GPU 2: NVIDIA H200 (UUID: GPU-eee)
"""


def test_gpus_are_listed_and_mig_instances_replace_their_gpu() -> None:
    assert parse(LISTING) == [("0", "GPU-aaa"), ("", "MIG-ccc"), ("", "MIG-ddd"), ("2", "GPU-eee")]
    assert narrow(parse(LISTING), None) == ["0", "MIG-ccc", "MIG-ddd", "2"]
    assert narrow(parse(LISTING), "2,0,7") == ["2", "0"]
    assert narrow(parse(LISTING), "MIG-d") == ["MIG-d"]
    assert narrow(parse(LISTING), "") == []


def test_each_pod_gets_its_own_gpus_and_waits_until_an_earlier_attempt_frees_them() -> None:
    async def scenario() -> None:
        gpus = Gpus(["a", "b", "c"], {"CUDA_VISIBLE_DEVICES": "a,b,c"})
        assert await gpus.acquire("one", 2) == {"CUDA_VISIBLE_DEVICES": "a,b"}
        assert await gpus.acquire("none", 0) == {"CUDA_VISIBLE_DEVICES": ""}
        waiting = asyncio.create_task(gpus.acquire("two", 2))
        await asyncio.sleep(0)
        assert not waiting.done()
        gpus.release("one")
        assert await waiting == {"CUDA_VISIBLE_DEVICES": "c,a"}

    asyncio.run(scenario())


def test_without_gpus_no_variable_is_set_and_with_too_few_no_rank_sees_one() -> None:
    async def scenario() -> None:
        assert await Gpus([], {}).acquire("one", 1) == {}
        few = Gpus(["0"], {})
        few.enabled = False
        assert await few.acquire("one", 1) == {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    asyncio.run(scenario())
