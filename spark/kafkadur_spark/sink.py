"""The sink `format("kafkadur")`: what a query says of its messages, row by row, settles them.

Spark writes in tasks, on executors, and commits in a Python worker of its own beside the driver; neither has
the driver's objects. So a task only gathers what its rows say, and the commit hands all of it to the driver,
which holds the subscription (`settlement_server.py`). A task of an attempt that was given up changes nothing,
and a commit that is repeated, after the driver died in between, settles nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kafkadur_sharing.errors import IllegalState
from kafkadur_spark.columns import check_columns
from kafkadur_spark.dispositions import Said
from kafkadur_spark.settlement_server import hand_in

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

#: Options, in the order `Reading.sink` gives them; the name of the last one has it kept out of Spark's logs.
ADDRESS, TOPIC, SECRET = "kafkadur.driver", "kafkadur.topic", "kafkadur.secret"
#: What becomes of the offsets of a batch that no row names.
UNLISTED = "unlisted"


class AckSink(DataSource):
    """The data source that Spark finds the sink in."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kafkadur"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802 - Spark's
        """Return what writes one query. Raises `IllegalState` for options or columns it does not take."""
        check_columns({field.name: field.dataType.typeName() for field in schema.fields})
        options = {name.lower(): value for name, value in self.options.items()}
        missing = [name for name in (ADDRESS, TOPIC, SECRET) if name not in options]
        unlisted = options.get(UNLISTED, "leave")
        if missing or unlisted not in {"leave", "ack"}:
            raise IllegalState(
                "The sink does not know whose it is." if missing else "The sink does not know this option.",
                state=f"option {', '.join(missing)} is missing" if missing else f"{UNLISTED} is {unlisted!r}",
                owner="the query",
                remedy="set writer.options(**reading.sink)" if missing else "use leave or ack",
            )
        return AckWriter(options, all_else=unlisted == "ack")


@dataclass
class Gathered(WriterCommitMessage):
    """What the rows of one task say."""

    said: Sequence[Said]


class AckWriter(DataSourceStreamWriter):
    """Writes one query; Spark hands a copy of it to every task."""

    def __init__(self, options: Mapping[str, str], *, all_else: bool) -> None:
        """`all_else` settles what no row names."""
        self._address = options[ADDRESS]
        self._secret = options[SECRET]
        self._topic = options[TOPIC]
        self._all_else = all_else

    def write(self, iterator: Iterator[Row | pa.RecordBatch]) -> Gathered:
        """Gather what the rows of a task say; nothing is changed by it."""
        # Spark asks and commits in processes of their own, several a batch, which need none of Arrow
        from pyarrow import RecordBatch  # noqa: PLC0415

        from kafkadur_spark.stretches import Gathering  # noqa: PLC0415

        gathering = Gathering(self._topic)
        for batch in iterator:
            if not isinstance(batch, RecordBatch):
                raise IllegalState(
                    "This Spark hands the sink single rows.",
                    state=f"a {type(batch).__name__}",
                    owner="pyspark",
                    remedy="settle with ack_batch in a foreachBatch",
                )
            gathering.add(batch)
        return Gathered(gathering.said())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Have the driver settle a batch; raises what it raises, and then Spark ends the query."""
        said = [one for message in messages if isinstance(message, Gathered) for one in message.said]
        hand_in(self._address, self._secret, batchId, said, all_else=self._all_else)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what is not settled comes again, and nothing was rolled back."""


# Spark asks whether a writer is one of these before it hands batches to it; this says so without inheriting
# the commit of a sink that is no stream.
DataSourceArrowWriter.register(AckWriter)
