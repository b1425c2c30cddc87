package benchmarks;

import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.concurrent.Semaphore;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * A load of JMS: URL TOPIC MESSAGES BYTES. Before each step it prints the name of the step and waits for a line;
 * after it, it prints the name and the seconds or nanoseconds that were measured.
 */
public final class Load {

  /** Messages that are under way when many are published. */
  private static final int UNDER_WAY = 500;

  private static final long WAIT_MS = 60_000, PAUSE_MS = 5;
  private static final int TIMED = 400, WARM = 100;

  private final Connection connection;
  private final String name;
  private final int count, size;

  private Load(Connection connection, String name, int count, int size) {
    this.connection = connection;
    this.name = name;
    this.count = count;
    this.size = size;
  }

  public static void main(String[] arguments) throws Exception {
    try (Connection connection = new JmsConnectionFactory(arguments[0]).createConnection()) {
      connection.setClientID("load");
      connection.start();
      int count = Integer.parseInt(arguments[2]), size = Integer.parseInt(arguments[3]);
      Load load = new Load(connection, arguments[1], count, size);
      load.subscribe();
      load.step("publish", load::publish);
      load.step("consume", load::consume);
      load.step("one by one", load::oneByOne);
    }
  }

  private interface Step {
    /** Returns what was measured. */
    String run() throws Exception;
  }

  private void step(String name, Step step) throws Exception {
    System.out.println(name);
    if (System.in.read() < 0) System.exit(1);
    System.out.println(name + " " + step.run());
  }

  private Session session() throws JMSException {
    return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
  }

  /** The durable subscription exists before the first message is published. */
  private void subscribe() throws JMSException {
    try (Session session = session()) {
      durable(session).close();
    }
  }

  private MessageConsumer durable(Session session) throws JMSException {
    return session.createDurableConsumer(session.createTopic(name), "load");
  }

  /** Publishes all messages, with many under way; returns seconds until all are accepted. */
  private String publish() throws Exception {
    try (Session session = session();
        MessageProducer producer = session.createProducer(session.createTopic(name))) {
      Semaphore room = new Semaphore(UNDER_WAY);
      byte[] body = new byte[size];
      long begun = System.nanoTime();
      for (int sent = 0; sent < count; sent++) {
        room.acquire();
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(body);
        producer.send(message, new CompletionListener() {
          @Override
          public void onCompletion(Message completed) {
            room.release();
          }

          @Override
          public void onException(Message failed, Exception error) {
            error.printStackTrace();
            System.exit(1);
          }
        });
      }
      room.acquire(UNDER_WAY);
      return seconds(begun);
    }
  }

  /** Receives all messages, each acknowledged; returns seconds until the consumer is closed. */
  private String consume() throws Exception {
    long begun = System.nanoTime();
    try (Session session = session(); MessageConsumer consumer = durable(session)) {
      for (int received = 0; received < count; received++) next(consumer);
    }
    return seconds(begun);
  }

  /** Sends and receives single messages with pauses; returns the nanoseconds from send to receive of each. */
  private String oneByOne() throws Exception {
    StringBuilder found = new StringBuilder();
    try (Session sending = session(); Session receiving = session()) {
      Topic topic = sending.createTopic(name);
      MessageProducer producer = sending.createProducer(topic);
      MessageConsumer consumer = receiving.createConsumer(topic);
      for (int sent = 0; sent < WARM + TIMED; sent++) {
        BytesMessage message = sending.createBytesMessage();
        message.writeBytes(new byte[size]);
        long begun = System.nanoTime();
        producer.send(message);
        next(consumer);
        if (sent >= WARM) found.append(System.nanoTime() - begun).append(' ');
        Thread.sleep(PAUSE_MS);
      }
    }
    return found.toString().trim();
  }

  private static void next(MessageConsumer consumer) throws JMSException {
    if (consumer.receive(WAIT_MS) == null) throw new IllegalStateException("A message is missing.");
  }

  private static String seconds(long begun) {
    return Double.toString((System.nanoTime() - begun) / 1e9);
  }
}
