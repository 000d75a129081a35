"""Settings of images that are texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.flags.media_settings import complaints, image_limit, media_hosts, processor_options
from router.config.groups.media import MediaSettings


@pytest.mark.parametrize(
    ("setting", "limit"),
    [
        (None, 32),
        ("{}", 32),
        ('{"image": 4}', 4),
        ('{"image": 0, "video": 0}', 0),
        ('{"image": {"count": 5, "width": 512, "height": 512}}', 5),
    ],
)
def test_the_number_of_images_is_read_in_vllms_forms(setting: str | None, limit: int) -> None:
    assert image_limit(MediaSettings(limit_mm_per_prompt=setting)) == limit


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (MediaSettings(limit_mm_per_prompt="4"), "--limit-mm-per-prompt 4: use a JSON object"),
        (MediaSettings(limit_mm_per_prompt='{"image": -1}'), "0 or more"),
        (MediaSettings(limit_mm_per_prompt='{"image": "4"}'), "0 or more"),
        (MediaSettings(limit_mm_per_prompt='{"video": 1}'), "only images are served, not video"),
        (MediaSettings(mm_processor_kwargs="{"), "--mm-processor-kwargs {: use a JSON object"),
        (MediaSettings(allowed_media_domains="https://a.example"), "use hosts alone"),
        (MediaSettings(allowed_media_domains="*.example.com"), "use hosts alone"),
        (MediaSettings(allowed_local_media_path="/nowhere"), "/nowhere is no folder"),
    ],
)
def test_what_is_wrong_is_said_with_the_flag(settings: MediaSettings, complaint: str) -> None:
    [found] = complaints(settings)
    assert complaint in found


def test_what_is_right_is_read(tmp_path: Path) -> None:
    settings = MediaSettings(
        mm_processor_kwargs='{"max_pixels": 7}',
        allowed_media_domains="A.example, 10.0.0.7 [fd00::1]",
        allowed_local_media_path=str(tmp_path),
    )
    assert not list(complaints(settings))
    assert processor_options(settings) == {"max_pixels": 7}
    assert media_hosts(settings) == ("a.example", "10.0.0.7", "fd00::1")
