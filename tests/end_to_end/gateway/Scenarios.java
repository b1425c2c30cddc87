import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

/** What a user of Jakarta Messaging does, with the client of Apache Qpid: scenario, URL, topic, further arguments. */
public class Scenarios {
  static final long LIMIT_MS = 60_000;

  public static void main(String[] a) throws Exception {
    switch (a[0]) {
      case "messages" -> messages(a[1], a[2]);
      case "durable" -> durable(a[1], a[2]);
      case "reattach" -> reattach(a[1], a[2]);
      case "kinds" -> kinds(a[1], a[2]);
      case "foreign" -> foreign(a[1], a[2]);
      case "sharing" -> sharing(a[1], a[2]);
      case "clientIds" -> clientIds(a[1], a[2]);
      case "selecting" -> selecting(a[1], a[2]);
      case "nondurable" -> nondurable(a[1], a[2]);
      case "acknowledging" -> acknowledging(a[1], a[2], Integer.parseInt(a[3]));
      case "listening" -> listening(a[1], a[2], a[3]);
      case "queues" -> queues(a[1], a[2]);
      case "transacted" -> transacted(a[1], a[2], a[3]);
      case "moving" -> moving(a[1], a[2], a[3]);
      case "asking" -> asking(a[1], a[2], a[3]);
      case "context" -> context(a[1], a[2]);
      case "publish" -> publish(a[1], a[2], Integer.parseInt(a[3]));
      case "queue" -> fill(a[1], a[2], Integer.parseInt(a[3]));
      case "work" -> work(a[1], a[2], Integer.parseInt(a[3]));
      default -> throw new IllegalArgumentException(a[0]);
    }
  }

  static void say(Object text) {
    System.out.println(text);
    System.out.flush();
  }

  static void check(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  static Connection connect(String url, String clientId) throws JMSException {
    Connection connection = new JmsConnectionFactory(url).createConnection();
    if (clientId != null) connection.setClientID(clientId);
    connection.start();
    return connection;
  }

  static Session auto(Connection connection) throws JMSException {
    return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
  }

  static String text(MessageConsumer consumer) throws JMSException {
    Message message = consumer.receive(LIMIT_MS);
    check(message != null, "a message within " + LIMIT_MS + " ms");
    return ((TextMessage) message).getText();
  }

  interface Act {
    void run() throws JMSException;
  }

  static void raises(Class<? extends JMSException> kind, Act act) throws JMSException {
    try {
      act.run();
    } catch (JMSException error) {
      check(kind.isInstance(error), kind.getSimpleName() + ", not " + error);
      return;
    }
    throw new AssertionError("no " + kind.getSimpleName());
  }

  /** Gives a message a property of each type. */
  static void withAllProperties(Message message) throws JMSException {
    message.setBooleanProperty("bo", true);
    message.setByteProperty("by", (byte) -1);
    message.setShortProperty("sh", (short) 300);
    message.setIntProperty("it", 70_000);
    message.setLongProperty("lo", 5L);
    message.setFloatProperty("fl", 1.5f);
    message.setDoubleProperty("du", 2.25);
    message.setStringProperty("st", "s");
  }

  /** All types of bodies and properties, and all fields. */
  static void messages(String url, String name) throws Exception {
    try (Connection connection = connect(url, null)) {
      Session session = auto(connection);
      Topic topic = session.createTopic(name);
      MessageConsumer consumer = session.createConsumer(topic);
      MessageProducer producer = session.createProducer(topic);
      TextMessage sent = session.createTextMessage("text");
      withAllProperties(sent);
      sent.setJMSCorrelationID("correlation");
      sent.setJMSType("kind");
      sent.setJMSReplyTo(topic);
      sent.setStringProperty("JMSXGroupID", "group");
      sent.setIntProperty("JMSXGroupSeq", 3);
      producer.setPriority(7);
      producer.setTimeToLive(60_000);
      long before = System.currentTimeMillis();
      producer.send(sent);
      Message got = consumer.receive(LIMIT_MS);
      check(((TextMessage) got).getText().equals("text"), "text");
      check(got.getObjectProperty("bo").equals(true), "boolean");
      check(got.getObjectProperty("by").equals((byte) -1), "byte");
      check(got.getObjectProperty("sh").equals((short) 300), "short");
      check(got.getObjectProperty("it").equals(70_000), "int");
      check(got.getObjectProperty("lo").equals(5L), "long");
      check(got.getObjectProperty("fl").equals(1.5f), "float");
      check(got.getObjectProperty("du").equals(2.25), "double");
      check(got.getObjectProperty("st").equals("s"), "string");
      check(got.getJMSCorrelationID().equals("correlation"), "correlation id");
      check(got.getJMSType().equals("kind"), "type");
      check(got.getJMSReplyTo().equals(topic), "reply to");
      check(got.getJMSDestination().equals(topic), "destination");
      check(got.getJMSMessageID().equals(sent.getJMSMessageID()), "message id");
      check(got.getStringProperty("JMSXGroupID").equals("group"), "group");
      check(got.getIntProperty("JMSXGroupSeq") == 3, "group sequence");
      check(got.getIntProperty("JMSXDeliveryCount") == 1 && !got.getJMSRedelivered(), "first delivery");
      check(got.getJMSPriority() == 7, "priority");
      check(got.getJMSDeliveryMode() == jakarta.jms.DeliveryMode.PERSISTENT, "delivery mode");
      check(Math.abs(got.getJMSTimestamp() - before) < LIMIT_MS, "timestamp");
      check(Math.abs(got.getJMSExpiration() - before - 60_000) < LIMIT_MS, "expiration");
      MapMessage map = session.createMapMessage();
      map.setInt("a", 1);
      map.setBytes("b", new byte[] {1, 2});
      producer.send(map);
      StreamMessage stream = session.createStreamMessage();
      stream.writeInt(4);
      stream.writeString("z");
      producer.send(stream);
      BytesMessage bytes = session.createBytesMessage();
      bytes.writeBytes(new byte[] {1, -1, 3});
      producer.send(bytes);
      producer.send(session.createObjectMessage(new ArrayList<>(List.of("o"))));
      producer.send(session.createMessage());
      producer.send(session.createTextMessage(null));
      byte[] large = new byte[1_000_000];
      large[999_999] = 7;
      bytes = session.createBytesMessage();
      bytes.writeBytes(large);
      producer.send(bytes);
      map = (MapMessage) consumer.receive(LIMIT_MS);
      check(map.getInt("a") == 1 && map.getBytes("b").length == 2, "map");
      stream = (StreamMessage) consumer.receive(LIMIT_MS);
      check(stream.readInt() == 4 && stream.readString().equals("z"), "stream");
      bytes = (BytesMessage) consumer.receive(LIMIT_MS);
      check(bytes.getBodyLength() == 3, "bytes");
      check(consumer.receive(LIMIT_MS) instanceof ObjectMessage, "object");
      check(!(consumer.receive(LIMIT_MS) instanceof TextMessage), "no body");
      check(((TextMessage) consumer.receive(LIMIT_MS)).getText() == null, "null text");
      bytes = (BytesMessage) consumer.receive(LIMIT_MS);
      bytes.readBytes(large);
      check(bytes.getBodyLength() == 1_000_000 && large[999_999] == 7, "1 MB");
      producer.setDeliveryDelay(1_500);
      long sentAt = System.currentTimeMillis();
      producer.send(session.createTextMessage("later"));
      Message early = consumer.receiveNoWait(); // on a busy machine it may take longer than the delay
      Message later = early != null ? early : consumer.receive(LIMIT_MS);
      check(((TextMessage) later).getText().equals("later"), "later");
      check(System.currentTimeMillis() >= sentAt + 1_500, "delivery delay");
    }
  }

  /** Sends messages of all kinds, each with properties of all types, for readers in other languages. */
  static void kinds(String url, String name) throws Exception {
    try (Connection connection = connect(url, null)) {
      Session session = auto(connection);
      BytesMessage bytes = session.createBytesMessage();
      bytes.writeBytes(new byte[] {1, -1});
      MapMessage map = session.createMapMessage();
      map.setInt("a", 1);
      map.setString("s", "x");
      map.setBytes("b", new byte[] {1, 2});
      StreamMessage stream = session.createStreamMessage();
      stream.writeInt(4);
      stream.writeString("z");
      Message object = session.createObjectMessage(new ArrayList<>(List.of("o")));
      for (Message each : List.of(session.createTextMessage("text"), bytes, map, stream, object, session.createMessage())) {
        withAllProperties(each);
        session.createProducer(session.createTopic(name)).send(each);
      }
    }
  }

  /** Receives what Python and JavaScript have sent to a shared durable subscription. */
  static void foreign(String url, String name) throws Exception {
    try (Connection connection = connect(url, null)) {
      Session session = auto(connection);
      MessageConsumer consumer = session.createSharedDurableConsumer(session.createTopic(name), "jms");
      Message python = consumer.receive(LIMIT_MS), text = consumer.receive(LIMIT_MS), map = consumer.receive(LIMIT_MS);
      byte[] body = new byte[2];
      check(((BytesMessage) python).readBytes(body) == 2 && body[1] == -1, "bytes of Python");
      check(python.getIntProperty("n") == 7 && python.getLongProperty("big") == 1L << 40, "integers of Python");
      check(python.getDoubleProperty("half") == 0.5 && python.getBooleanProperty("yes"), "others of Python");
      check(((TextMessage) text).getText().equals("of JavaScript") && text.getStringProperty("s").equals("x"), "a text");
      check(((MapMessage) map).getObject("a").equals("one"), "a map");
    }
  }

  /** Durable subscriptions: backlog, another selector, unsubscribing in every state. */
  static void durable(String url, String name) throws Exception {
    try (Connection connection = connect(url, "app"); Connection other = connect(url, null)) {
      Session session = auto(connection);
      Topic topic = session.createTopic(name);
      MessageProducer producer = session.createProducer(topic);
      MessageConsumer consumer = session.createDurableConsumer(topic, "dur");
      producer.send(session.createTextMessage("1"));
      check(text(consumer).equals("1"), "attached");
      check(consumer.receiveNoWait() == null, "nothing waits");
      raises(JMSException.class, () -> session.unsubscribe("dur"));
      consumer.close();
      for (int i = 2; i < 5; i++) producer.send(session.createTextMessage("" + i));
      consumer = session.createDurableConsumer(topic, "dur");
      for (int i = 2; i < 5; i++) check(text(consumer).equals("" + i), "backlog " + i);
      consumer.close();
      producer.send(session.createTextMessage("gone"));
      consumer = session.createDurableConsumer(topic, "dur", "n = 1", false); // begins anew (U4)
      Message chosen = session.createTextMessage("chosen");
      chosen.setIntProperty("n", 1);
      producer.send(chosen);
      check(text(consumer).equals("chosen"), "another selector");
      consumer.close();
      session.unsubscribe("dur");
      raises(InvalidDestinationException.class, () -> session.unsubscribe("dur"));
      Session second = auto(other);
      MessageConsumer one = second.createSharedDurableConsumer(topic, "glob");
      Session third = auto(connection);
      raises(InvalidDestinationException.class, () -> third.unsubscribe("glob")); // of its own client id
      raises(JMSException.class, () -> second.unsubscribe("glob")); // in use
      one.close();
      second.unsubscribe("glob");
      raises(InvalidDestinationException.class, () -> second.unsubscribe("glob"));
      raises(InvalidDestinationException.class, () -> session.createConsumer(session.createTopic(name + ".none")));
      raises(InvalidDestinationException.class, () -> session.createProducer(session.createTopic(name + ".none")));
      raises(JMSException.class, () -> session.createConsumer(session.createQueue(name), "n = 1"));
      raises(InvalidSelectorException.class, () -> session.createConsumer(topic, "n >"));
    }
  }

  /** Shared durable subscriptions over two connections: rules S3 to S6. */
  static void sharing(String url, String name) throws Exception {
    try (Connection app = connect(url, "app"); Connection one = connect(url, null); Connection two = connect(url, null)) {
      Session own = auto(app), first = auto(one), second = auto(two);
      Topic topic = first.createTopic(name);
      MessageConsumer held = first.createSharedDurableConsumer(topic, "s", "n = 1");
      raises(JMSException.class, () -> second.createSharedDurableConsumer(topic, "s", "n = 2")); // S4
      MessageConsumer joined = second.createSharedDurableConsumer(topic, "s", "n = 1");
      MessageProducer producer = first.createProducer(topic);
      Message chosen = first.createTextMessage("1");
      chosen.setIntProperty("n", 1);
      producer.send(chosen);
      Message got = held.receive(LIMIT_MS / 10);
      check((got != null ? got : joined.receive(LIMIT_MS)) != null, "one of them has it");
      held.close();
      joined.close();
      producer.send(chosen);
      held = second.createSharedDurableConsumer(topic, "s", "n > 0"); // S3: it begins anew
      chosen.clearProperties();
      chosen.setIntProperty("n", 2);
      producer.send(chosen);
      check(held.receive(LIMIT_MS).getIntProperty("n") == 2, "what waited for n = 1 is gone");
      MessageConsumer other = own.createSharedDurableConsumer(topic, "s"); // S6: of the client id
      producer.send(chosen);
      check(other.receive(LIMIT_MS) != null && held.receive(LIMIT_MS) != null, "both have it");
      other.close();
      raises(JMSException.class, () -> own.createDurableConsumer(topic, "s")); // U6
      own.createDurableConsumer(topic, "e").close();
      raises(JMSException.class, () -> own.createSharedDurableConsumer(topic, "e")); // S5
      held.close();
      second.unsubscribe("s");
      own.unsubscribe("s");
      own.unsubscribe("e");
    }
  }

  /** A durable subscription over a failover URL: lines of standard input say when the gateway has gone. */
  static void reattach(String url, String name) throws Exception {
    try (Connection connection = connect(url, url.contains("clientID") ? null : "app")) {
      Session session = auto(connection);
      Topic topic = session.createTopic(name);
      MessageConsumer consumer = session.createDurableConsumer(topic, "dur");
      MessageProducer producer = session.createProducer(topic);
      producer.send(session.createTextMessage("before"));
      check(text(consumer).equals("before"), "before");
      say("attached");
      check(System.in.read() >= 0, "told that it has gone");
      producer.send(session.createTextMessage("after"));
      Set<String> seen = new TreeSet<>();
      while (!seen.containsAll(Set.of("0", "after"))) seen.add(text(consumer));
      seen.remove("before"); // its acknowledgement may have been lost with the gateway
      say(seen);
    }
  }

  static void clientIds(String url, String name) throws Exception {
    Connection connection = connect(url, "app");
    auto(connection).createTopic(name);
    raises(InvalidClientIDException.class, () -> connect(url, "app"));
    connection.close();
    connect(url, "app").close();
    say("ready");
    check(System.in.read() >= 0, "told that another one has it");
    raises(InvalidClientIDException.class, () -> connect(url, "killed"));
    say("refused");
    check(System.in.read() >= 0, "told that it was killed");
    long until = System.currentTimeMillis() + LIMIT_MS;
    while (true) {
      try {
        connect(url, "killed").close();
        break;
      } catch (InvalidClientIDException error) {
        check(System.currentTimeMillis() < until, "the client id is free");
      }
    }
  }

  static void selecting(String url, String name) throws Exception {
    try (Connection one = connect(url, "one"); Connection two = connect(url, "two")) {
      Session session = auto(one);
      Topic topic = session.createTopic(name);
      MessageConsumer chosen = session.createConsumer(topic, "n > 2 AND kind LIKE 'a%'");
      MessageConsumer remote = session.createConsumer(topic, null, true);
      MessageProducer own = session.createProducer(topic), others = auto(two).createProducer(topic);
      for (int n = 0; n < 5; n++) {
        TextMessage message = session.createTextMessage("" + n);
        message.setIntProperty("n", n);
        message.setStringProperty("kind", n == 3 ? "b" : "ab");
        (n == 4 ? others : own).send(message);
      }
      check(text(chosen).equals("4"), "selected");
      check(chosen.receiveNoWait() == null, "only that");
      check(text(remote).equals("4"), "of the other connection");
      check(remote.receiveNoWait() == null, "only that");
    }
  }

  /** A shared non-durable subscription joins, and ends with its last consumer; a durable one of its name is another. */
  static void nondurable(String url, String name) throws Exception {
    try (Connection one = connect(url, null); Connection two = connect(url, null)) {
      Session first = auto(one), second = auto(two);
      Topic topic = first.createTopic(name);
      MessageConsumer a = first.createSharedConsumer(topic, "s"), b = second.createSharedConsumer(topic, "s");
      MessageConsumer durable = first.createSharedDurableConsumer(topic, "s");
      MessageProducer producer = first.createProducer(topic);
      for (int i = 0; i < 20; i++) producer.send(first.createTextMessage("" + i));
      Set<String> shared = new TreeSet<>(), copies = new TreeSet<>();
      while (shared.size() < 20) {
        for (MessageConsumer each : List.of(a, b)) {
          Message message = each.receive(100);
          if (message != null) check(shared.add(((TextMessage) message).getText()), "each once");
        }
      }
      while (copies.size() < 20) copies.add(text(durable));
      a.close();
      b.close();
      producer.send(first.createTextMessage("unseen"));
      a = first.createSharedConsumer(topic, "s");
      check(a.receiveNoWait() == null, "a new subscription");
      check(text(durable).equals("unseen"), "the durable one has it");
      durable.close();
      first.unsubscribe("s");
    }
  }

  /** CLIENT_ACKNOWLEDGE: many messages unacknowledged, recovered, and a session that is closed. */
  static void acknowledging(String url, String name, int count) throws Exception {
    try (Connection connection = connect(url, "app")) {
      Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
      Topic topic = session.createTopic(name);
      MessageConsumer consumer = session.createDurableConsumer(topic, "dur");
      publish(url, name, count);
      for (int i = 0; i < count; i++) check(text(consumer).equals("" + i), "in order " + i);
      session.recover();
      for (int i = 0; i < count; i++) {
        TextMessage message = (TextMessage) consumer.receive(LIMIT_MS);
        check(message.getText().equals("" + i) && message.getJMSRedelivered(), "recovered " + i);
        if (i == count / 2) message.acknowledge();
      }
      session.close();
      session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
      consumer = session.createDurableConsumer(topic, "dur");
      Message last = null;
      for (int i = count / 2 + 1; i < count; i++) {
        last = consumer.receive(LIMIT_MS);
        check(((TextMessage) last).getText().equals("" + i), "again " + i);
      }
      last.acknowledge();
      check(consumer.receiveNoWait() == null, "all were acknowledged");
    }
  }

  /** A listener that always fails: its message becomes a dead letter, and the next one is delivered. */
  static void listening(String url, String name, String dead) throws Exception {
    try (Connection connection = connect(url, "app")) {
      Session session = auto(connection), letters = auto(connection);
      Topic topic = session.createTopic(name);
      MessageConsumer undertaker = letters.createConsumer(letters.createTopic(dead));
      MessageConsumer consumer = session.createDurableConsumer(topic, "dur");
      CountDownLatch good = new CountDownLatch(1);
      List<Integer> counts = new ArrayList<>();
      consumer.setMessageListener(message -> {
        try {
          if (((TextMessage) message).getText().equals("poison")) {
            counts.add(message.getIntProperty("JMSXDeliveryCount"));
            throw new IllegalStateException("poison");
          }
          good.countDown();
        } catch (JMSException error) {
          throw new IllegalStateException(error);
        }
      });
      MessageProducer producer = letters.createProducer(letters.createTopic(name));
      producer.send(letters.createTextMessage("poison"));
      producer.send(letters.createTextMessage("good"));
      check(text(undertaker).equals("poison"), "a dead letter");
      check(good.await(LIMIT_MS, TimeUnit.MILLISECONDS), "the next one");
      say(counts);
    }
  }

  static List<String> browsed(Session session, Queue queue, String selector) throws JMSException {
    List<String> found = new ArrayList<>();
    try (QueueBrowser browser = session.createBrowser(queue, selector)) {
      for (Object each : Collections.list(browser.getEnumeration())) found.add(((TextMessage) each).getText());
    }
    Collections.sort(found);
    return found;
  }

  /** A queue: its consumers share what was sent before and after them; a browser takes nothing. */
  static void queues(String url, String name) throws Exception {
    try (Connection one = connect(url, "one"); Connection two = connect(url, null)) {
      Session session = auto(one), other = auto(two);
      Queue queue = session.createQueue(name);
      check(browsed(session, queue, null).isEmpty(), "an empty queue");
      MessageProducer producer = session.createProducer(null), sender = other.createProducer(queue);
      for (int i = 0; i < 3; i++) {
        TextMessage message = session.createTextMessage("" + i);
        message.setIntProperty("n", i);
        message.setJMSReplyTo(queue);
        if (i == 1) sender.send(message); else producer.send(queue, message);
      }
      check(browsed(other, queue, null).equals(List.of("0", "1", "2")), "all");
      check(browsed(other, queue, "n > 0").equals(List.of("1", "2")), "selected");
      MessageConsumer consumer = session.createConsumer(queue);
      Set<String> seen = new TreeSet<>();
      for (int i = 0; i < 3; i++) {
        Message message = consumer.receive(LIMIT_MS);
        check(message.getJMSDestination().equals(queue) && message.getJMSReplyTo().equals(queue), "of a queue");
        seen.add(((TextMessage) message).getText());
      }
      check(seen.equals(Set.of("0", "1", "2")), "each once");
      long until = System.currentTimeMillis() + LIMIT_MS; // acknowledgements are on their way
      while (!browsed(other, queue, null).isEmpty()) check(System.currentTimeMillis() < until, "empty again");
      consumer.close();
      sender.send(session.createTextMessage("kept"));
      check(text(other.createConsumer(queue)).equals("kept"), "a queue outlives its consumers");
    }
  }

  /** Request and reply by a temporary queue, at two gateways; the queue ends with its connection. */
  static void asking(String url, String second, String name) throws Exception {
    try (Connection answering = connect(second, null)) {
      Session server = auto(answering);
      MessageProducer replier = server.createProducer(null);
      server.createConsumer(server.createQueue(name)).setMessageListener(request -> {
        try {
          TextMessage reply = server.createTextMessage(((TextMessage) request).getText() + "!");
          reply.setJMSCorrelationID(request.getJMSMessageID());
          replier.send(request.getJMSReplyTo(), reply);
        } catch (JMSException error) {
          throw new IllegalStateException(error);
        }
      });
      TemporaryQueue gone;
      try (Connection connection = connect(url, null)) {
        Session session = auto(connection);
        MessageProducer producer = session.createProducer(session.createQueue(name));
        TemporaryQueue replies = gone = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(replies);
        for (int i = 0; i < 10; i++) {
          TextMessage request = session.createTextMessage("" + i);
          request.setJMSReplyTo(replies);
          producer.send(request);
          TextMessage reply = (TextMessage) consumer.receive(LIMIT_MS);
          check(reply.getText().equals(i + "!"), "the reply");
          check(reply.getJMSCorrelationID().equals(request.getJMSMessageID()), "to this request");
          check(reply.getJMSDestination().equals(replies), "a temporary queue");
        }
        check(consumer.receiveNoWait() == null, "no further reply");
        raises(JMSException.class, () -> auto(answering).createConsumer(replies)); // of another connection
        raises(JMSException.class, replies::delete); // it has a consumer
        consumer.close();
        TemporaryQueue deleted = session.createTemporaryQueue();
        deleted.delete();
        raises(JMSException.class, () -> session.createProducer(deleted));
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer one = session.createConsumer(topic), two = session.createConsumer(topic, "n = 1");
        MessageProducer sender = session.createProducer(topic);
        for (int i = 0; i < 2; i++) {
          TextMessage message = session.createTextMessage("" + i);
          message.setIntProperty("n", i);
          sender.send(message);
        }
        check(text(one).equals("0") && text(one).equals("1") && text(two).equals("1"), "each has its own");
      }
      try (Connection connection = connect(url, null)) {
        raises(InvalidDestinationException.class, () -> auto(connection).createProducer(gone));
      }
    }
  }

  /** Transacted sessions: commit, rollback, both directions, several consumers, and a session that is closed. */
  static void transacted(String url, String name, String out) throws Exception {
    try (Connection connection = connect(url, "app"); Connection other = connect(url, null)) {
      Session session = connection.createSession(true, Session.SESSION_TRANSACTED), plain = auto(other);
      Topic topic = session.createTopic(name);
      MessageConsumer consumer = session.createDurableConsumer(topic, "dur");
      MessageConsumer results = plain.createConsumer(plain.createTopic(out));
      MessageProducer producer = session.createProducer(session.createTopic(out));
      publish(url, name, 10);
      for (int i = 0; i < 3; i++) check(text(consumer).equals("" + i), "in order " + i);
      producer.send(session.createTextMessage("a"));
      check(results.receiveNoWait() == null, "not before the commit");
      session.commit();
      check(text(results).equals("a"), "committed");
      for (int i = 3; i < 6; i++) check(text(consumer).equals("" + i), "in order " + i);
      producer.send(session.createTextMessage("b"));
      session.rollback();
      for (int i = 3; i < 6; i++) {
        TextMessage again = (TextMessage) consumer.receive(LIMIT_MS);
        check(again.getText().equals("" + i) && again.getJMSRedelivered(), "rolled back " + i);
        check(again.getIntProperty("JMSXDeliveryCount") == 2, "the second attempt");
      }
      session.commit();
      check(text(consumer).equals("6"), "after the commit");
      session.close(); // which rolls back
      check(results.receiveNoWait() == null, "what was rolled back is not seen");
      session = connection.createSession(true, Session.SESSION_TRANSACTED);
      consumer = session.createDurableConsumer(topic, "dur");
      MessageConsumer volatileOne = session.createConsumer(session.createTopic(out));
      for (int i = 6; i < 10; i++) check(text(consumer).equals("" + i), "kept " + i);
      session.createProducer(session.createTopic(out)).send(session.createTextMessage("c"));
      session.commit();
      check(text(volatileOne).equals("c") && text(results).equals("c"), "both");
      session.rollback();
      check(text(volatileOne).equals("c"), "of a non-durable subscription, too");
      consumer.close(); // its consumer is closed before the commit
      session.commit();
      session.unsubscribe("dur");
      try (JMSContext context = new JmsConnectionFactory(url).createContext(JMSContext.SESSION_TRANSACTED)) {
        context.createProducer().send(context.createQueue(out), "d");
        context.rollback();
        context.createProducer().send(context.createQueue(out), "e");
        context.commit();
      }
      check(text(results).equals("e"), "only what was committed");
    }
  }

  /** Moves numbers from a queue to a topic, each exactly once, until it has been idle; says each commit. */
  static void moving(String url, String name, String out) throws Exception {
    try (Connection connection = connect(url, null)) {
      Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
      MessageConsumer consumer = session.createConsumer(session.createQueue(name));
      MessageProducer producer = session.createProducer(session.createTopic(out));
      say("attached");
      while (true) {
        try {
          int count = 0;
          Message message = consumer.receive(10_000);
          if (message == null) return;
          for (; message != null && count < 5; count++) {
            producer.send(session.createTextMessage(((TextMessage) message).getText()));
            message = count < 4 ? consumer.receive(1_000) : null;
          }
          session.commit();
          say(count);
        } catch (JMSException error) { // rolled back, or in doubt: what was not committed comes again
          say("failed " + error.getClass().getSimpleName() + " " + error.getMessage());
          try {
            session.rollback();
            consumer.close(); // it may still have messages that it has given back: see docs/how-to/amqp.md
            consumer = session.createConsumer(session.createQueue(name));
          } catch (JMSException again) { // the next commit fails, too, or a closed consumer is used
            say("failed " + again.getClass().getSimpleName());
          }
        }
      }
    }
  }

  /** The simplified API. */
  static void context(String url, String name) {
    JmsConnectionFactory factory = new JmsConnectionFactory(url);
    try (JMSContext context = factory.createContext()) {
      context.setClientID("app");
      Topic topic = context.createTopic(name);
      JMSConsumer consumer = context.createDurableConsumer(topic, "dur");
      context.createProducer().setProperty("n", 1).send(topic, "hello");
      check(consumer.receiveBody(String.class, LIMIT_MS).equals("hello"), "hello");
      consumer.close();
      context.unsubscribe("dur");
    }
  }

  static void publish(String url, String name, int count) throws Exception {
    try (Connection connection = connect(url, null)) {
      Session session = auto(connection);
      send(session, session.createTopic(name), count);
    }
  }

  static void fill(String url, String name, int count) throws Exception {
    try (Connection connection = connect(url, null)) {
      Session session = auto(connection);
      send(session, session.createQueue(name), count);
    }
  }

  static void send(Session session, Destination destination, int count) throws Exception {
    try (MessageProducer producer = session.createProducer(destination)) {
      CountDownLatch left = new CountDownLatch(count);
      CompletionListener counting = new CompletionListener() {
        public void onCompletion(Message message) {
          left.countDown();
        }

        public void onException(Message message, Exception error) {
          say(error);
        }
      };
      for (int i = 0; i < count; i++) producer.send(session.createTextMessage("" + i), counting);
      check(left.await(LIMIT_MS, TimeUnit.MILLISECONDS), "all were accepted");
    }
  }

  /** Works on a shared durable subscription until it has been idle; prints each text, and whether it is redelivered. */
  static void work(String url, String name, int stopAfter) throws Exception {
    try (Connection connection = connect(url, null)) {
      Session session = auto(connection);
      MessageConsumer consumer = session.createSharedDurableConsumer(session.createTopic(name), "work");
      say("attached");
      for (int done = 0; ; done++) {
        Message message = consumer.receive(LIMIT_MS);
        if (message == null) return;
        if (((TextMessage) message).getText().equals("end")) return;
        say(((TextMessage) message).getText() + (message.getJMSRedelivered() ? " redelivered" : ""));
        if (done + 1 == stopAfter) {
          say("holding");
          Thread.sleep(LIMIT_MS);
        }
      }
    }
  }
}
