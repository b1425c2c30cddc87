"""What a program imports that has no use for the command line, and the command line without its extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLI = ["click", "prometheus_client", "rich", "typer"]


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)


def test_a_program_imports_nothing_of_the_command_line() -> None:
    done = run(
        "import sys, kafkadur, kafkadur.sync, kafkadur.jms\n"
        "[getattr(kafkadur, name) for name in kafkadur.__all__]\n"
        f"print([name for name in {CLI} if name in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_importing_the_package_imports_no_client_of_a_server() -> None:
    done = run(
        "import sys, kafkadur\n"
        "print([name for name in ('asyncio', 'confluent_kafka', 'redis') if name in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


def test_public_names_and_modules_are_there_and_no_others() -> None:
    done = run(
        "import kafkadur\n"
        "print(callable(kafkadur.connect), kafkadur.stack.__name__, hasattr(kafkadur, 'nothing'))\n"
        "print(*sorted({name for name in dir(kafkadur) if name[0] != '_'} ^ set(kafkadur.__all__)))"
    )
    assert done.stdout == "True kafkadur.stack False\njms sync testing\n", done.stderr


@pytest.mark.parametrize("module", ["kafkadur.sync", "kafkadur.jms"])
def test_a_module_shows_its_public_names_only(module: str) -> None:
    done = run(f"import {module} as one\nprint(dir(one) == sorted(one.__all__), one.connection.__name__)")
    assert done.stdout == f"True {module}.connection\n", done.stderr


@pytest.mark.parametrize("missing", ["rich", "typer"])
def test_without_its_extra_the_command_says_what_to_install(missing: str) -> None:
    done = run(
        f"import sys; sys.modules['{missing}'] = None\n"
        "from kafkadur.cli import main\nsys.argv = ['kafkadur', 'sub', 'ls']\nmain()"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"The command line needs the package {missing}, which is not installed: "
        "pip install 'kafkadur[cli]'.\n"
    )


def test_help_and_completion_import_no_client() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from kafkadur.cli.application import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['sub', '--help']).exit_code == 0\n"
        "print(*{'confluent_kafka', 'redis', 'lark'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


def test_a_command_imports_no_metrics_of_redis_and_hides_them_from_nobody_else() -> None:
    done = run(
        "import sys\n"
        "from kafkadur.cli.application import function_of\n"
        "function_of('subscriptions.ls')\n"
        "print('opentelemetry.sdk.metrics' in sys.modules)\n"
        "import opentelemetry.sdk.metrics"
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_options_are_completed(tmp_path: Path) -> None:
    """As a shell asks for them, after `kafkadur --install-completion`."""
    environment = {
        **os.environ,
        "_KAFKADUR_COMPLETE": "complete_bash",
        "COMP_WORDS": "kafkadur sub create --max",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from kafkadur.cli import main; main()"],
        check=False, capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert {"--max-attempts", "--max-backoff", "--max-hold", "--max-consumers"} == set(done.stdout.split())
