"""A feature of a request is named in few files: the others pass it on without looking."""

from __future__ import annotations

import pytest

from scripts.feature_files import files_of, texts

MOST = 12
PRODUCT = list(texts())


@pytest.mark.parametrize(
    "feature", ["prompt_logprobs", "logprob_token_ids", "retention", "weight_versions", "receipts"]
)
def test_a_feature_that_is_on_the_envelope_is_named_in_few_files(feature: str) -> None:
    files = files_of(PRODUCT, feature)
    assert 4 < len(files) <= MOST, "\n".join(files)
