"""Records the transcripts of docs/guides/data.md with an S3 server on this machine.

Run it as `.venv/bin/python tools/data_guide.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from transcripts import ROOT, console, replaced

from support.data_servers import s3_environment, s3_server

PAGE = ROOT / "docs" / "guides" / "data.md"
EXAMPLE = "examples/data/penguins.yaml"
STREAM = "examples/data/stream.yaml"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, s3_server() as url:
        scratch, client = Path(name), buckets(url)
        sections = {
            "fetch": run(scratch, url, EXAMPLE),
            "cached": run(scratch, url, EXAMPLE, "--set", "outputs[0].when=Always", shown="input data|Succeeded"),
            "wrong-sum": run(scratch, url, EXAMPLE, "--set", f"inputs[0].sha256={'ab' * 32}", shown="error:"),
            "stream": run(scratch, url, STREAM),
            "unwritable": run(scratch, url, EXAMPLE, "--set", "outputs[0].to=s3://model/penguins", shown="error:"),
            "missing": run(scratch, url, EXAMPLE, "--set", "inputs[0].from=s3://birds/penguin", shown="error:"),
        }
        body = client.get_object(Bucket="models", Key="penguins/allranks-manifest.json")["Body"].read().decode()
        client.close()
        sections["manifest"] = console("aws s3 cp s3://models/penguins/allranks-manifest.json -", body.splitlines())
    text = PAGE.read_text()
    for section, content in sections.items():
        text = replaced(text, section, content)
    PAGE.write_text(text)


def buckets(url: str) -> Any:
    """The client of a server with the penguins in the bucket `birds`, and an empty bucket `models`."""
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, **keys)
    for name in ("birds", "models"):
        client.create_bucket(Bucket=name)
    table = (ROOT / "train" / "data" / "penguins.csv").read_text()
    client.put_object(Bucket="birds", Key="penguins/penguins.csv", Body=table.encode())
    first, *rows = table.splitlines(keepends=True)
    for number in range(5):
        client.put_object(Bucket="birds", Key=f"tables/{number}.csv", Body=(first + "".join(rows[number::5])).encode())
    return client


def run(scratch: Path, url: str, *words: str, shown: str = ".") -> str:
    """The transcript of one command, with the lines that match `shown`."""
    run_dir = scratch / "runs"
    env = {**os.environ, **s3_environment(url), "ALLRANKS_CACHE": str(scratch / "cache")}
    command = [sys.executable, "-m", "allranks", "run", *words, "--run-dir", str(run_dir)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    text = done.stdout.replace(str(scratch / "cache"), "~/.cache/allranks").replace(
        str(run_dir), "runs/penguins-stream/1" if STREAM in words else "runs/penguins-data/1"
    )
    lines = [line for line in text.splitlines() if re.search(shown, line)]
    typed = " ".join(json.dumps(word) if re.search(r"[\s\[]", word) else word for word in words).replace('"', "'")
    return console(f"allranks run {typed}", lines)


if __name__ == "__main__":
    main()
