"""The sink `format("kafkadur")`: the rows of a query are verdicts on its messages.

Spark writes in tasks on executors and commits in a separate Python worker beside the driver; neither can use
the driver's objects. So a task only gathers its rows, and the commit sends all of them to the driver, which
holds the subscription (`settlement_server.py`). A task of an abandoned attempt changes nothing, and a commit
that is repeated because the driver died settles nothing twice.
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

#: Options, in the order of `Reading.sink`; Spark keeps an option named like the last one out of its logs.
ADDRESS, TOPIC, SECRET = "kafkadur.driver", "kafkadur.topic", "kafkadur.secret"
#: The option for the offsets of a batch that no row names.
UNLISTED = "unlisted"


class AckSink(DataSource):
    """The data source that gives Spark the sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kafkadur"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802 - Spark's
        """Return the writer of one query. Raises `IllegalState` for wrong options or columns."""
        check_columns({field.name: field.dataType.typeName() for field in schema.fields})
        options = {name.lower(): value for name, value in self.options.items()}
        missing = [name for name in (ADDRESS, TOPIC, SECRET) if name not in options]
        unlisted = options.get(UNLISTED, "leave")
        if missing or unlisted not in {"leave", "ack"}:
            raise IllegalState(
                "The sink needs the options of a reading." if missing else "The sink has no such option.",
                state=f"option {', '.join(missing)} is missing" if missing else f"{UNLISTED} is {unlisted!r}",
                owner="the query",
                remedy="set writer.options(**reading.sink)" if missing else "use leave or ack",
            )
        return AckWriter(options, all_else=unlisted == "ack")


@dataclass
class Gathered(WriterCommitMessage):
    """The verdicts in the rows of one task."""

    said: Sequence[Said]


class AckWriter(DataSourceStreamWriter):
    """Writes one query; Spark gives every task a copy of it."""

    def __init__(self, options: Mapping[str, str], *, all_else: bool) -> None:
        """`all_else`: whether offsets that no row names are settled."""
        self._address = options[ADDRESS]
        self._secret = options[SECRET]
        self._topic = options[TOPIC]
        self._all_else = all_else

    def write(self, iterator: Iterator[Row | pa.RecordBatch]) -> Gathered:
        """Gather the verdicts in the rows of a task; this changes nothing."""
        # Spark plans and commits in other processes, several for each batch, which do not need Arrow
        from pyarrow import RecordBatch  # noqa: PLC0415

        from kafkadur_spark.gathering import Gathering  # noqa: PLC0415

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
        """Have the driver settle a batch; raises its error, and then Spark ends the query."""
        said = [one for message in messages if isinstance(message, Gathered) for one in message.said]
        hand_in(self._address, self._secret, batchId, said, all_else=self._all_else)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: unsettled messages are redelivered, and nothing was rolled back."""


# Spark passes Arrow batches only to an instance of this class; registering avoids inheriting the commit of a
# sink for frames that are not streams.
DataSourceArrowWriter.register(AckWriter)
