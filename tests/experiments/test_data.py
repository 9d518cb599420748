import gzip
import io
import lzma
import pickle
import sys

import cifar10
import imagenet_data
import numpy as np
import pytest
import torch

from rootscale.cli import main
from rootscale.lab import data

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(data.VARIABLE, raising=False)


def batches(rows=4):
    """Six batches of random images with their labels, the last for testing."""
    generator = np.random.default_rng(0)
    return [
        (generator.integers(0, 256, (rows, 3, 32, 32), np.uint8), generator.integers(0, 10, rows, np.uint8))
        for _ in range(6)
    ]


class Python2Pickler(pickle._Pickler):
    """Writes strings and bytes as Python 2 did, as in the official files: both are ``str`` there."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012 (as pickle has it)

    def save_str(self, obj):
        self.save_bytes(obj.encode("latin1"))

    def save_bytes(self, obj):
        self.write(b"T" + len(obj).to_bytes(4, "little") + obj)  # BINSTRING

    dispatch[str] = save_str
    dispatch[bytes] = save_bytes


def python2(content):
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(content)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def python3(content):
    return pickle.dumps(content, protocol=2)


def write_pickles(folder, write=python2):
    for name, (images, labels) in zip([*BATCHES, "test_batch"], batches(), strict=True):
        rows = images.reshape(len(images), -1)
        content = {"batch_label": name, "data": rows, "labels": labels.tolist(), "filenames": ["a.png"] * len(rows)}
        (folder / name).write_bytes(write(content))


def write_packed(folder):
    """The inverse of what the reader does, one step after the other."""
    held = batches()
    for name, (images, _) in zip([*(f"train{i}" for i in range(1, 6)), "test"], held, strict=True):
        planes = images.transpose(1, 0, 2, 3).copy()
        planes[0] -= planes[1]
        planes[2] -= planes[1]
        for axis in (3, 2):
            planes = np.diff(planes, axis=axis, prepend=np.zeros_like(planes).take([0], axis))
        (folder / f"{name}.xz").write_bytes(lzma.compress(planes.tobytes()))
    np.save(folder / "train_labels.npy", np.concatenate([labels for _, labels in held[:5]]))
    np.save(folder / "test_labels.npy", held[5][1])


CIFAR_FORMS = [
    ("cifar-10-batches-py", write_pickles),
    ("cifar10/cifar-10-batches-py", lambda folder: write_pickles(folder, python3)),
    ("cifar10", write_packed),
    (".", write_packed),
    (".", write_pickles),
]


def written(tmp_path, below, write):
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    write(tmp_path / below)
    return tmp_path / below


@pytest.mark.parametrize(("below", "write"), CIFAR_FORMS)
def test_every_form_of_cifar10_gives_the_same_tensors(tmp_path, below, write):
    written(tmp_path, below, write)
    images = cifar10.images(tmp_path, rows=4)
    expected = batches()
    assert images.train.inputs.dtype == torch.uint8
    assert images.train.targets.dtype == torch.int64
    assert np.array_equal(images.train.inputs.numpy(), np.concatenate([x for x, _ in expected[:5]]))
    assert np.array_equal(images.train.targets.numpy(), np.concatenate([y for _, y in expected[:5]]))
    assert np.array_equal(images.test.inputs.numpy(), expected[5][0])
    assert np.array_equal(images.test.targets.numpy(), expected[5][1])
    assert images.classes[3] == "cat"
    assert len(images.classes) == 10


def test_the_folder_may_come_from_the_environment_and_an_argument_goes_first(tmp_path, monkeypatch):
    written(tmp_path, "here/cifar10", write_packed)
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "here"))
    assert len(cifar10.images(rows=None).train) == 20
    with pytest.raises(ValueError, match=r"there is no folder .*elsewhere to read CIFAR-10"):
        cifar10.images(tmp_path / "elsewhere")
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "elsewhere"))
    with pytest.raises(ValueError, match=r"no folder .*elsewhere \(from ROOTSCALE_DATA\)"):
        cifar10.images()


def test_without_a_folder_the_variable_and_the_option_are_named(capsys):
    with pytest.raises(ValueError, match=r"no folder to read CIFAR-10 from: set .* ROOTSCALE_DATA .* as --data"):
        cifar10.images()
    assert main(["check", "mnist", "--to", "64"]) == 2  # the command has no option for it
    assert "no folder to read MNIST from: set the environment variable ROOTSCALE_DATA" in capsys.readouterr().err


def test_where_nothing_is_found_every_layout_and_its_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"CIFAR-10 is not in .*ROOTSCALE_DATA") as error:
        cifar10.images(tmp_path)
    for text in ("data_batch_1 ... test_batch in cifar-10-batches-py", "train1.xz ... test_labels"):
        assert text in str(error.value)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte ... .* or with .gz, .xz in MNIST/raw, mnist"):
        data.mnist(tmp_path)


def test_missing_files_are_named(tmp_path):
    folder = written(tmp_path, "cifar10", write_packed)
    (folder / "train4.xz").unlink()
    (folder / "test_labels.npy").unlink()
    with pytest.raises(
        ValueError, match=r"not complete:\n.*cifar10 has train1.xz.* but not train4.xz, test_labels.npy"
    ):
        cifar10.images(tmp_path)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("write", "name", "size", "message"),
    [
        (write_packed, "train3.xz", 100, "train3.xz cannot be read or is truncated"),
        (write_packed, "train_labels.npy", 130, "train_labels.npy is truncated or no .npy file"),
        (write_pickles, "data_batch_5", 500, "data_batch_5 is truncated or no batch of CIFAR-10"),
        (write_pickles, "test_batch", 0, "test_batch is truncated or no batch of CIFAR-10"),
    ],
)
def test_a_truncated_file_is_named(tmp_path, write, name, size, message):
    write(tmp_path)
    cut(tmp_path / name, size)
    with pytest.raises(ValueError, match=message):
        cifar10.images(tmp_path, rows=4)


def test_by_default_a_file_of_cifar10_must_have_10_000_images(tmp_path):
    write_packed(tmp_path)
    with pytest.raises(ValueError, match=r"train1.xz must have 10,000 x 3,072 = 30,720,000 bytes, got 12,288"):
        cifar10.images(tmp_path)
    (tmp_path / "train1.xz").write_bytes(lzma.compress(bytes(3072 + 1)))
    with pytest.raises(ValueError, match=r"must have a multiple of 3,072 bytes .*, got 3,073 bytes"):
        cifar10.images(tmp_path, rows=None)


def test_wrong_contents_are_named(tmp_path):
    folder = written(tmp_path, "packed", write_packed)
    np.save(folder / "test_labels.npy", np.arange(3, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"test_labels.npy: there must be 4 labels, got an array of shape \(3,\)"):
        cifar10.images(folder, rows=4)
    np.save(folder / "test_labels.npy", np.array([0, 1, 2, 10]))
    with pytest.raises(ValueError, match=r"test_labels.npy: labels must be whole numbers from 0 to 9, got 0 to 10"):
        cifar10.images(folder, rows=4)
    folder = written(tmp_path, "pickles", write_pickles)
    for labels in (["cat"] * 4, [0.5] * 4):
        (folder / "data_batch_1").write_bytes(python2({"data": np.zeros((4, 3072), np.uint8), "labels": labels}))
        with pytest.raises(ValueError, match=r"data_batch_1: labels must be whole numbers from 0 to 9, got values of "):
            cifar10.images(folder, rows=4)
    (folder / "data_batch_1").write_bytes(python2({"data": np.zeros((4, 100), np.uint8), "labels": [0] * 4}))
    with pytest.raises(ValueError, match=r"data_batch_1 must have uint8 data of shape \(4, 3072\).*got .* \(4, 100\)"):
        cifar10.images(folder, rows=4)


def test_a_pickle_cannot_call_anything(tmp_path):
    write_pickles(tmp_path)
    target = tmp_path / "made by the pickle"
    (tmp_path / "data_batch_1").write_bytes(b"cos\nmkdir\n(V" + str(target).encode() + b"\ntR.")
    with pytest.raises(
        ValueError, match=r"data_batch_1 .* it would call os.mkdir, where only numpy arrays are expected"
    ):
        cifar10.images(tmp_path, rows=4)
    assert not target.exists()


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return head + array.tobytes()


def write_mnist(folder, suffix="", pack=bytes):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    held = {}
    for split, rows in (("train", 5), ("t10k", 3)):
        images, labels = generator.integers(0, 256, (rows, 28, 28), np.uint8), np.arange(rows, dtype=np.uint8)
        held[split] = images, labels
        (folder / f"{split}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images)))
        (folder / f"{split}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels)))
    return held


@pytest.mark.parametrize("below", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_mnist_is_read_plain_or_compressed(tmp_path, below, suffix, pack):
    held = write_mnist(tmp_path / below, suffix, pack)
    images = data.mnist(tmp_path)
    for part, name in ((images.train, "train"), (images.test, "t10k")):
        assert part.inputs.shape == (len(held[name][0]), 1, 28, 28)
        assert np.array_equal(part.inputs[:, 0].numpy(), held[name][0])
        assert np.array_equal(part.targets.numpy(), held[name][1])


def test_wrong_idx_files_are_named(tmp_path):
    write_mnist(tmp_path)
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    whole = images.read_bytes()
    cut(images, 1000)
    with pytest.raises(
        ValueError, match=r"train-images.* must have 3,936 bytes \(header, then 5 x 28 x 28\), got 1,000"
    ):
        data.mnist(tmp_path)
    images.write_bytes(b"<html>not found</html>")
    with pytest.raises(
        ValueError, match=r"train-images.* must begin with the IDX header 00000803 and sizes, got '3c68"
    ):
        data.mnist(tmp_path)
    images.write_bytes(whole)
    labels.write_bytes(idx(np.arange(4, dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"must have 4 images of 28 x 28, .*got shape \(5, 28, 28\)"):
        data.mnist(tmp_path)
    gz = tmp_path / "gz" / "train-labels-idx1-ubyte.gz"
    write_mnist(tmp_path / "gz", ".gz", gzip.compress)
    cut(gz, 20)
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte.gz cannot be read or is truncated"):
        data.mnist(tmp_path / "gz")


def picture(colour, size, form="PNG", mode="RGB"):
    from PIL import Image

    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, form)
    return out.getvalue()


COLOURS = {"blue": (0, 0, 200), "red": (200, 0, 0)}


def write_folder(root, test="val"):
    for part, count in (("train", 3), (test, 2)):
        for name, colour in COLOURS.items():
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                (root / part / name / f"{i}.PNG").write_bytes(picture(colour, (20 + i, 12)))
            (root / part / name / "notes.txt").write_text("no image")


@pytest.mark.parametrize("test", ["val", "test"])
def test_a_folder_of_images_is_read_at_one_size(tmp_path, test):
    write_folder(tmp_path, test)
    images = data.image_folder(tmp_path, size=8)
    assert images.classes == ("blue", "red")
    assert images.train.inputs.shape == (6, 3, 8, 8)
    assert images.train.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.test.targets.tolist() == [0, 0, 1, 1]
    for part in (images.train, images.test):
        for image, label in zip(part.inputs, part.targets, strict=True):
            expected = torch.tensor(COLOURS[images.classes[label]], dtype=torch.uint8)
            assert torch.equal(image, expected[:, None, None].expand(3, 8, 8))


def test_the_middle_of_a_wide_image_is_taken(tmp_path):
    from PIL import Image

    write_folder(tmp_path)
    wide = Image.new("L", (24, 8), 0)
    wide.paste(255, (8, 0, 16, 8))
    wide.save(tmp_path / "train" / "blue" / "0.PNG")
    image = data.image_folder(tmp_path, size=8).train.inputs[0]
    assert image.min() == 255


def test_folders_of_images_that_do_not_fit_are_named(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "val" / "green").mkdir()
    with pytest.raises(ValueError, match=r"train and .*val must have the same classes, got green in one"):
        data.image_folder(tmp_path)
    (tmp_path / "train" / "green").mkdir()
    with pytest.raises(ValueError, match=r"train/green has no images"):
        data.image_folder(tmp_path)
    (tmp_path / "train" / "green" / "bad.jpg").write_bytes(picture((1, 2, 3), (9, 9), "JPEG")[:60])
    with pytest.raises(ValueError, match=r"bad.jpg is truncated or no image"):
        data.image_folder(tmp_path)
    with pytest.raises(ValueError, match=r"must have the folders train and val \(or test\)"):
        data.image_folder(tmp_path / "train")
    with pytest.raises(ValueError, match=r"size must be at least 1, got 0"):
        data.image_folder(tmp_path, size=0)


def write_tiny(folder, sizes=((64, 64),) * 3):
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        # one is grey, as some of the original are
        files = [
            picture(*args, size, "JPEG", mode)
            for args, size, mode in zip([[90], [(10, 20, 30)], [(9, 9, 9)]], sizes, ["L", "RGB", "RGB"], strict=True)
        ]
        offsets = np.cumsum([0, *map(len, files)])
        jpeg = np.frombuffer(b"".join(files), np.uint8)
        np.savez(folder / f"{split}.npz", jpeg=jpeg, offsets=offsets, labels=np.array([1, 0, 1], np.uint8))
    (folder / "classes.txt").write_text("0\tn01\ttabby cat\n1\tn02\treel\n")


def test_tiny_imagenet_20_is_read_from_its_jpeg_files(tmp_path):
    write_tiny(tmp_path / "tiny-imagenet-20")
    images = imagenet_data.tiny(tmp_path)
    assert images.classes == ("tabby cat", "reel")
    assert images.train.inputs.shape == images.test.inputs.shape == (3, 3, 64, 64)
    assert images.train.targets.tolist() == [1, 0, 1]
    assert (images.train.inputs[0] == 90).all()
    assert (images.train.inputs[1].float().mean((1, 2)) - torch.tensor([10.0, 20, 30])).abs().max() <= 2


def test_wrong_files_of_tiny_imagenet_20_are_named(tmp_path):
    write_tiny(tmp_path, ((64, 64), (32, 64), (64, 64)))
    with pytest.raises(ValueError, match=r"image 1 of .*train.npz must be 64 x 64, got 32 x 64"):
        imagenet_data.tiny(tmp_path)
    write_tiny(tmp_path)
    (tmp_path / "classes.txt").write_text("0\tn01\ttabby cat\n")
    with pytest.raises(ValueError, match=r"train.npz: labels must be whole numbers from 0 to 0, got 0 to 1"):
        imagenet_data.tiny(tmp_path)
    write_tiny(tmp_path)
    with np.load(tmp_path / "val.npz") as file:
        held = dict(file)
    np.savez(tmp_path / "val.npz", **{**held, "offsets": held["offsets"][:-1]})
    with pytest.raises(ValueError, match=r"val.npz must have 4 offsets .* got 3 that end at"):
        imagenet_data.tiny(tmp_path)
    cut(tmp_path / "val.npz", 300)
    with pytest.raises(ValueError, match=r"val.npz is truncated or has no jpeg, offsets and labels"):
        imagenet_data.tiny(tmp_path)
    (tmp_path / "val.npz").unlink()
    with pytest.raises(ValueError, match=r"not complete:\n.* has train.npz, classes.txt but not val.npz"):
        imagenet_data.tiny(tmp_path)


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    write_folder(tmp_path)
    for name in [name for name in sys.modules if name == "PIL" or name.startswith("PIL.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"need Pillow, .* pip install 'rootscale\[lab\]'"):
        data.image_folder(tmp_path)


def test_images_of_imagenet_are_decoded_when_they_are_read(tmp_path):
    for part in ("train", "val"):
        for name, colour in COLOURS.items():
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(2):
                (tmp_path / part / name / f"{i}.JPEG").write_bytes(picture(colour, (40 + i, 30), "JPEG"))
    train, test = (imagenet_data.imagenet(tmp_path, part, 16) for part in ("train", "val"))
    assert (len(train), len(test)) == (4, 4)
    x, y = train[torch.tensor([[3, 0], [1, 2]])]
    assert (x.shape, x.dtype) == ((2, 2, 3, 16, 16), torch.uint8)
    assert y.tolist() == [[1, 0], [0, 1]]
    expected = torch.tensor([COLOURS[("blue", "red")[label]] for label in y.flatten()])
    assert (x.float().mean((-2, -1)).flatten(0, 1) - expected).abs().max() <= 2
    (tmp_path / "val").rename(tmp_path / "test")
    with pytest.raises(ValueError, match=r"must have the folders train and val, each with a folder for each class"):
        imagenet_data.imagenet(tmp_path, "train")


def test_a_crop_is_a_part_of_the_image_with_the_shape_that_the_uniforms_say():
    """A picture of its own coordinates shows which part was taken."""
    size = 64
    along = (torch.arange(size) + 0.5) / size
    x = torch.stack([along.expand(size, size), along[:, None].expand(size, size)])[None].repeat(500, 1, 1, 1)
    u = torch.rand(500, 5, generator=torch.Generator().manual_seed(0))
    columns, rows = imagenet_data.Crop()(x, u).unbind(1)
    inner = size - 2  # the outermost points may lie beyond the middle of the first pixel, where nothing is known
    width = (columns[:, 32, -2] - columns[:, 32, 1]) * size / (inner - 1)
    height = (rows[:, -2, 32] - rows[:, 1, 32]) * size / (inner - 1)
    assert torch.equal(width < 0, u[:, 4] < 0.5), "mirrored"
    whole = (width.abs() < 0.97) & (height < 0.97)
    area, ratio = width.abs() * height, width.abs() / height
    torch.testing.assert_close(area[whole], (0.08 + 0.92 * u[:, 0])[whole], rtol=0.03, atol=0.01)
    torch.testing.assert_close(ratio[whole].log(), ((2 * u[:, 1] - 1) * np.log(4 / 3))[whole], rtol=0, atol=0.05)
    assert (columns.min() >= 0, columns.max() <= 1, rows.min() >= 0, rows.max() <= 1) == (True,) * 4
