"""Run the JMS example with Maven: starts servers and a gateway, and creates topics. Needs a JDK."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from kafkadur.stack import up


def main() -> None:
    """Start what the example needs, and run it."""
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit("Maven is not installed: install the package maven, or run Billing.java in your own way.")
    stack = up()  # servers for trying, which go on running: `kafkadur down` ends them
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    missing = {"billing-orders", "billing-invoices"} - admin.list_topics().topics.keys()
    for created in admin.create_topics([NewTopic(each, 2) for each in missing]).values() if missing else ():
        created.result()
    command = [sys.executable, "-m", "kafkadur.cli", "gateway", "--port", "0", "--log-level", "warning"]
    servers = ["--kafka", stack.kafka, "--redis", stack.redis]
    with subprocess.Popen(  # noqa: S603 - this project's command
        [*command, *servers], stderr=subprocess.PIPE, text=True
    ) as gateway:
        try:
            found = None
            for line in gateway.stderr or ():
                if found := re.search(r"amqp://[^;]+", line):
                    break
                sys.stderr.write(line)
            if found is None:
                sys.exit("The gateway has not started.")
            program = [maven, "-q", "compile", "exec:java", f"-Dexec.args={found[0]}"]
            sys.exit(subprocess.call(program, cwd=Path(__file__).parent))  # noqa: S603 - Maven
        finally:
            gateway.terminate()


if __name__ == "__main__":
    main()
