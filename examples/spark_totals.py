"""Spark reads what is not settled, writes it as Parquet and settles each batch when it is written.

Start servers with `kafkadur up` before. Run it twice: the second time it reads only what is new.
"""

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

import kafkadur.sync
import kafkadur_spark
from kafkadur.stack import up


def main() -> None:
    """Publish ten sales, and add them up in a query that ends when it has read all."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "sales" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("sales", num_partitions=2)])["sales"].result()
    out = Path("sales-output").absolute()
    spark = kafkadur_spark.session("totals", master="local[2]", config={"spark.ui.enabled": "false"})

    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis, client_id="totals") as connection:
        with connection.producer() as producer:
            for number in range(10):
                producer.publish("sales", str(number))
        # while it is held nobody else is attached to the subscription
        with kafkadur_spark.hold(connection, "sales", durable="totals", start="earliest") as holder:
            reading = kafkadur_spark.read_stream(spark, holder, str(out / "checkpoints"))

            def work(batch: DataFrame, number: int) -> None:
                amounts = batch.selectExpr("cast(cast(value as string) as int) as amount")
                # the same batch again, after a crash, writes the same folder
                folder = out / f"generation={reading.generation}" / f"batch={number}"
                amounts.write.mode("overwrite").parquet(str(folder))
                print(f"settled {reading.ack_batch(number)} offsets of batch {number}")

            query = reading.start(reading.frame.writeStream.foreachBatch(work).trigger(availableNow=True))
            query.awaitTermination()

    written = spark.read.parquet(*map(str, out.glob("generation=*/batch=*")))
    count, total = written.selectExpr("count(*)", "sum(amount)").collect()[0]
    print(f"{count} sales, {total} in all")
    spark.stop()


if __name__ == "__main__":
    main()
