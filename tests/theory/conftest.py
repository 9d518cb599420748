import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    # Tensors here are small: a second thread gains little, and costs a hundredfold where the cores are shared.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
