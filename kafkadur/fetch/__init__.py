"""Reading Kafka for a member: the reading threads, the buffer, what is read and what is left out."""
