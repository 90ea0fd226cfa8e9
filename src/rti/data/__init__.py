"""Training data: sources with random access, so that training can resume at any position exactly.

source   what an example and a source are; pictures to tensors; broken examples are skipped and counted
folder   pictures with captions, or one folder per class
shards   webdataset tar files
fetch    downloads
hub      Hugging Face data sets
photographs  crops of a few large pictures
mixture  several sources with weights
shuffle  the order of each epoch
opening  from what the user writes to a source

    source = open_data("cc12m/{000..099}.tar@0.06,photos/@0.016", size=512)
    examples, shuffle = Tolerant(source), Shuffle.of(source, seed)
    example, index, skipped = examples[shuffle.index(position)]
"""

from rti.data.mixture import Mixture
from rti.data.opening import open_data
from rti.data.shuffle import Shuffle
from rti.data.source import BrokenExample, Drawn, Example, Source, Tolerant, prepare_image

__all__ = [
    "BrokenExample",
    "Drawn",
    "Example",
    "Mixture",
    "Shuffle",
    "Source",
    "Tolerant",
    "open_data",
    "prepare_image",
]
