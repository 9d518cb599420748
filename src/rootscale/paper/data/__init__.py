"""Readers of image data on disk: bytes in tensors, and errors that say which file is wrong.

Nothing is downloaded. Each reader takes the folder that holds the data; without one it takes the folder that the
environment variable ``ROOTSCALE_DATA`` names. A dataset comes in several layouts, which are rows of a table, and is
looked for in that folder and in the folders that other tools make in it.

    layouts      what a layout is, and where it is looked for
    cifar        CIFAR-10
    idx          MNIST
    pictures     folders of images, and Tiny-ImageNet-20
    generated    images for smoke tests
"""

from rootscale.paper.data.cifar import cifar10
from rootscale.paper.data.generated import patterns
from rootscale.paper.data.idx import mnist
from rootscale.paper.data.layouts import VARIABLE, Images, data_folder
from rootscale.paper.data.pictures import image_folder, tiny_imagenet20

__all__ = [
    "VARIABLE", "Images", "cifar10", "data_folder", "image_folder", "mnist", "patterns", "tiny_imagenet20",
]  # fmt: skip
