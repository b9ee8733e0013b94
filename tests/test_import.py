"""`import adambo` needs torch alone, and little time beyond it."""

import subprocess
import sys

OTHERS = ["matplotlib", "rich", "sklearn", "yaml", "pytest", "hypothesis", "transformers", "jsonargparse", "optuna"]


def python(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_needs_torch_alone():
    blocked = f"import sys; sys.modules.update(dict.fromkeys({OTHERS}))"
    assert python(f"{blocked}; import adambo, adambo.testing; print(adambo.AdamBO.__name__)").strip() == "AdamBO"


def test_import_takes_less_than_a_third_of_a_second_beyond_torch():
    # Time of the processor: that of the clock is also what else the machine does.
    code = "import torch, time; t = time.process_time(); import adambo; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(3)) < 0.3


def test_import_and_a_step_print_nothing():
    code = (
        "import torch, adambo; x = torch.zeros(1, requires_grad=True); y = torch.zeros(1, requires_grad=True);"
        "p = adambo.Problem(lambda b: (y - 1).square().sum(), lambda b: (y - x).square().sum(), x, y);"
        "adambo.AdamBO(p).step(0, 0)"
    )
    assert python(code) == ""
