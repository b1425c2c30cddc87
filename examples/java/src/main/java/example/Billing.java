package example;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * Orders come by a queue, and become invoices in a topic: each order one invoice, by a transaction. A durable
 * subscription takes the large invoices, also those that were sent while it had no consumer.
 */
public final class Billing {

  private static final long WAIT_MS = 60_000;

  public static void main(String[] arguments) throws JMSException {
    String url = arguments.length > 0 ? arguments[0] : "amqp://127.0.0.1:5672";
    JmsConnectionFactory factory = new JmsConnectionFactory("failover:(" + url + ")");
    try (Connection connection = factory.createConnection()) {
      connection.setClientID("billing");
      connection.start();
      subscribe(connection);
      order(connection, 10, 250, 40, 300);
      bill(connection, 4);
      collect(connection, 2);
    }
  }

  /** Creates the durable subscription; nobody consumes it yet. */
  private static void subscribe(Connection connection) throws JMSException {
    try (Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE)) {
      large(session).close();
    }
  }

  private static MessageConsumer large(Session session) throws JMSException {
    return session.createDurableConsumer(invoices(session), "large", "amount >= 100", false);
  }

  private static void order(Connection connection, int... amounts) throws JMSException {
    try (Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        MessageProducer producer = session.createProducer(orders(session))) {
      for (int amount : amounts) {
        TextMessage message = session.createTextMessage("order of " + amount);
        message.setIntProperty("amount", amount);
        producer.send(message); // returns when Kafka has the message
      }
    }
  }

  /** Makes an invoice of each order: both are committed, or none. */
  private static void bill(Connection connection, int count) throws JMSException {
    try (Session session = connection.createSession(true, Session.SESSION_TRANSACTED)) {
      MessageConsumer consumer = session.createConsumer(orders(session));
      MessageProducer producer = session.createProducer(invoices(session));
      for (int done = 0; done < count; ) {
        TextMessage order = (TextMessage) consumer.receive(WAIT_MS);
        if (order == null) return; // a commit has succeeded although it was reported as failed
        TextMessage invoice = session.createTextMessage("invoice for the " + order.getText());
        invoice.setIntProperty("amount", order.getIntProperty("amount"));
        producer.send(invoice);
        try {
          session.commit();
          done++;
        } catch (JMSException error) { // the order comes again, unless the commit has succeeded
          session.rollback();
          consumer.close(); // docs/how-to/amqp.md says why
          consumer = session.createConsumer(orders(session));
        }
      }
    }
  }

  /** Takes the large invoices; a message that is not acknowledged comes again. */
  private static void collect(Connection connection, int count) throws JMSException {
    try (Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = large(session)) {
      for (int done = 0; done < count; done++) {
        Message invoice = consumer.receive(WAIT_MS);
        if (invoice == null) throw new IllegalStateException("An invoice is missing.");
        System.out.println(((TextMessage) invoice).getText());
        invoice.acknowledge();
      }
    }
  }

  private static Queue orders(Session session) throws JMSException {
    return session.createQueue("billing-orders");
  }

  private static Topic invoices(Session session) throws JMSException {
    return session.createTopic("billing-invoices");
  }

  private Billing() {}
}
