import pytest
from pydantic import ValidationError

from woodshed.weights.settings import WeightSettings


def test_a_store_is_a_prefix_of_a_bucket_or_nothing() -> None:
    for good in ("", "s3://bucket/runs/laptop", "s3://bucket/x/"):
        assert WeightSettings(store=good).store == good
    for bad in ("gs://bucket/x", "s3://bucket", "s3://bucket//", "s3:///x", "folder"):
        with pytest.raises(ValidationError, match=r"write \"s3://bucket/prefix\""):
            WeightSettings(store=bad)
