"""Looks whether an object is in the S3 server of the environment, also from programs of tests."""

from __future__ import annotations


def exists(bucket: str, key: str) -> bool:
    import boto3

    client = boto3.client("s3")
    try:
        return bool(client.list_objects_v2(Bucket=bucket, Prefix=key).get("KeyCount"))
    finally:
        client.close()
