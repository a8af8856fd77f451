"""The scripts that tests/devtool/trace/test_command.py runs. `# name` marks a line that a report must give."""

# One process for all, because torch_xla takes seconds to start.
SCRIPT = """
import sys
import torch
import torch_xla
from torch_xla.core import xla_model
from torch_xla.debug import metrics

device = torch_xla.device()

def changed_shape():
    for size in (4, 5, 6):
        x = torch.ones(size).to(device)
        y = x * 3  # shape: made
        torch_xla.sync()  # shape: sync

def changed_constant():
    x = torch.ones(8).to(device)
    torch_xla.sync()
    for factor in (0.0, 1.0):
        y = x * factor  # constant: made
        torch_xla.sync()  # constant: sync

def changed_attribute():
    x = torch.ones(8, 8).to(device)
    torch_xla.sync()
    for alpha in (0.5, 1.5):
        y = torch.ops.xla_gpu.simple_add(x, x, alpha)  # attribute: made
        torch_xla.sync()  # attribute: sync

def changed_index():
    x = torch.ones(8).to(device)
    torch_xla.sync()
    for first in range(3):
        y = x[first : first + 2] * 7  # index: made
        torch_xla.sync()  # index: sync

def item_in_a_loop():
    x = torch.ones(8).to(device)
    for number in range(4):
        x = torch.ones(8).to(device) * 1.25
        x.sum().item()  # item

def read_of_a_result():
    x = torch.ones(()).to(device) * 5
    torch_xla.sync()
    for _ in range(3):
        float(x)  # float

def fallback():
    x = torch.eye(3).to(device) * 2
    torch.linalg.eigvals(x)  # fallback

def growing():
    state = torch.zeros(2).to(device)
    for _ in range(3):
        state = state * 2 + 1
        state[0].item()  # growing

def unrolled():
    x = torch.ones(8).to(device)
    for _ in range(40):
        x = torch.sin(x)  # unrolled
    torch_xla.sync()

def waiting():
    for _ in range(7):
        x = torch.ones(16).to(device) + 1
        torch_xla.sync(wait=True)  # wait
    print(x[:2])  # print

@torch.compile(backend="openxla")
def broken(x):
    y = x + 1
    print("in between")  # break
    return y * y.sum().item()  # item in a compiled function

for part in (
    changed_shape, changed_constant, changed_attribute, changed_index, item_in_a_loop, read_of_a_result, fallback,
    growing, unrolled, waiting,
):
    part()
    torch_xla.sync()
for size in (4, 7):
    broken(torch.ones(size).to(device))
xla_model.wait_device_ops()
print(torch._dynamo.utils.counters["frames"], torch._dynamo.utils.counters["graph_break"].total())
print(sys.argv[1:], metrics.metric_data("CompileTime")[0], metrics.metric_data("ExecuteTime")[0])
sys.exit(7)
"""

# A good step reads no value in the loop and has one sync per step.
CLEAN = """
import torch
import torch_xla

device = torch_xla.device()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.ones(16, 8).to(device)
total = torch.zeros(()).to(device)
for _ in range(8):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.detach()
    # A loop inside the step is part of its graph, as layers are.
    for _ in range(32):
        total = torch.sin(total)
    torch_xla.sync()
print(round(total.item(), 3))
"""
