"""Spark publishes payments with properties, a job claims the large ones, and says of each what becomes of it.

Start servers with `kafkadur up` before. An ordinary consumer may work on the same subscription meanwhile.
"""

from confluent_kafka.admin import AdminClient, NewTopic

import kafkadur.sync
import kafkadur_spark
from kafkadur.stack import up


def main() -> None:
    """Publish twenty payments, and settle, roll back or reject those that are claimed."""
    stack = up()  # what `kafkadur up` started here
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    if "payments" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("payments", num_partitions=2)])["payments"].result()
    spark = kafkadur_spark.session("payments", master="local[2]", config={"spark.ui.enabled": "false"})

    with kafkadur.sync.connect(kafka=stack.kafka, redis=stack.redis, client_id="payments") as connection:
        payments = spark.range(20).selectExpr("id * 10 as amount", "concat('payment ', id) as text")
        sent = kafkadur_spark.messages(payments, value="text", properties=["amount"])
        options = kafkadur_spark.kafka_options(connection)
        sent.write.format("kafka").options(**options).option("topic", "payments").save()

        with kafkadur_spark.share(
            connection, "payments", durable="large", selector="amount >= 100", start="earliest"
        ) as claimer:
            while claim := claimer.claim(1_000, timeout=5):
                frame = claimer.read(spark, claim).selectExpr(
                    "partition", "offset", "cast(value as string) text"
                )
                rows = sorted(frame.collect(), key=lambda row: int(row.text.split()[1]))
                later = [(row.partition, row.offset) for row in rows if row.text == "payment 11"]
                bad = [(row.partition, row.offset, "no account") for row in rows if row.text == "payment 13"]
                if len(rows) == 1:  # it came again
                    later = []
                claimer.ack(claim, rolled_back=later, rejected=bad)
                done = len(rows) - len(later) - len(bad)
                print(
                    f"{done} done, {len(later)} later, {len(bad)} rejected: {rows[0].text} to {rows[-1].text}"
                )
    spark.stop()


if __name__ == "__main__":
    main()
