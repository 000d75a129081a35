"""Why images cannot be used. Imports no library of images."""


class ImageError(Exception):
    """The image cannot be used; the message says why, as the end of a sentence."""


class ImageProcessorFailed(Exception):
    """The checkpoint's image processor cannot be used; the message says why."""
