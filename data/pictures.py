"""Pictures from files, all of one size."""

import contextlib
import importlib.util
import warnings
from pathlib import Path

import numpy as np

from engine.errors import UserError

NO_IMAGE, DAMAGED = "no picture", "damaged"


def read_picture(path: Path, image_size: int, channels: int) -> np.ndarray | str:
    """The picture in a file, (channels, image_size, image_size) uint8, or why there is none: it is of another kind, or damaged.

    It is cut to the square in its middle, then brought to this size. Raises UserError where the package that reads it is missing.
    """
    if importlib.util.find_spec("PIL") is None:
        raise UserError("the package pillow, which reads pictures, is not installed; pip install -e '.[zoo]' would do")
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings(), contextlib.ExitStack() as stack:
            warnings.simplefilter("ignore")  # of odd metadata, and, while it is opened, of many pixels
            file = stack.enter_context(Image.open(path))
            picture = ImageOps.exif_transpose(file)  # a photograph as it was held; the first frame
            if picture.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
                picture = Image.fromarray((np.asarray(picture).clip(0, 65535) // 256).astype(np.uint8))
            if picture.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in picture.info:
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)  # what is clear is white
            picture = picture.convert("L" if channels == 1 else "RGB")
            picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BICUBIC)  # the middle, then resized
    except UnidentifiedImageError:
        return NO_IMAGE
    except Exception:  # Pillow raises many kinds for a damaged file
        return DAMAGED
    return np.asarray(picture).reshape(image_size, image_size, channels).transpose(2, 0, 1)
