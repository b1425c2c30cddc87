"""Reading Kafka for a member: the reading threads, the buffer, and which messages a subscription takes."""
