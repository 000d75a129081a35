"""The images of a request's body, of any API that takes them."""

from __future__ import annotations

from collections.abc import Sequence

from router.api.apis import APIS
from router.api.generation.chat_images import images_of
from router.api.generation.params.validation import parse
from router.api.media.marks import ImageSource
from router.api.scheduled_body import ScheduledBody
from router.errors import InvalidRequest


def images_of_body(body: bytes) -> Sequence[ImageSource]:
    """In the order of the prompt. Raises ValueError for what is no body of a request."""
    errors = []
    bodies = dict.fromkeys(endpoint.body for api in APIS for endpoint in api.endpoints)
    for kind in bodies:
        if kind is None or not issubclass(kind, ScheduledBody):
            continue
        try:
            request = parse(kind, body).to_request("")
        except InvalidRequest as error:
            errors.append(f"{kind.__doc__}: {error}".partition("\n")[0])
            continue
        return [image for prompt in request.prompts for image in images_of(prompt)]
    raise ValueError(f"the request's body belongs to no API: {'; '.join(errors)}")
