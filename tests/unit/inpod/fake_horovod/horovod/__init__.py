"""A fake of the parts of Horovod that the helper uses: its rendezvous, a key-value store over HTTP. No ranks use it;
`test_horovod_gloo.py` has a slow test with the real one."""
