"""A data set of colour images for the toy encoders, in the jsonl layout."""

import gzip
import io
import json
import tarfile

from PIL import Image

from capsearch.encoders.data.dataset import read
from capsearch.engine.fakes import colour_image

# Colours of each image, and its captions. The toy encoders detect eight colours in images,
# and colours and objects in captions. Image 2 is wrongly described as blue in Chinese.
IMAGES = [
    (("red",), {"en": ["a red car", "something red"], "zh": ["红色的车"], "ja": ["赤い車"]}),
    (("blue",), {"en": ["the blue sea"], "zh": ["蓝色的海"]}),
    (("green", "white"), {"en": ["a green tree"], "zh": ["蓝色的树"]}),
    (("yellow",), {"en": ["yellow bread"]}),
]


def png(*colours):
    file = io.BytesIO()
    Image.fromarray(colour_image(*colours)).save(file, "PNG")
    return file.getvalue()


def write_split(folder, split, images=IMAGES, source="test"):
    records = [
        {
            "id": number,
            "file": f"{number}.png",
            "captions": {
                lang: [{"text": text, "source": source} for text in texts]
                for lang, texts in captions.items()
            },
        }
        for number, (_, captions) in enumerate(images)
    ]
    lines = "\n".join(map(json.dumps, records)).encode()
    (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines))
    with tarfile.open(folder / f"{split}-00.tar", "w") as archive:
        for number, (colours, _) in enumerate(images):
            content = png(*colours) if colours else b"no image"
            info = tarfile.TarInfo(f"{number}.png")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return read([folder], splits=[split])
