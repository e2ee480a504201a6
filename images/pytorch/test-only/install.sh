#!/bin/sh
# Runs instead of pip with the build argument TEST_ONLY_STUB_CUDA: installs PyTorch in a quarter of the space, with stubs in
# place of CUDA's libraries, for tests on machines without a GPU. Any use of CUDA fails.
set -eu
folder=$(dirname "$0")
requirements=$folder/../requirements.txt

torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$requirements")
grep -v '^torch==' "$requirements" >/tmp/others.txt
python3 -m pip install --requirement /tmp/others.txt
python3 -m pip install --no-deps "$torch"
# PyTorch's other dependencies are pure Python; two CUDA libraries are called while PyTorch is loaded.
python3 "$folder/stub_cuda.py" --requirements >/tmp/torch.txt
python3 -m pip install --requirement /tmp/torch.txt

apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends binutils gcc libc6-dev
python3 "$folder/stub_cuda.py"
apt-get purge --yes --autoremove binutils gcc libc6-dev
rm -rf /tmp/others.txt /tmp/torch.txt /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
python3 -c 'import torch, torch.distributed; assert not torch.cuda.is_available()'
