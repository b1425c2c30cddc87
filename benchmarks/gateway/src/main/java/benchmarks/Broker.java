package benchmarks;

import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

/** Apache ActiveMQ Artemis with AMQP at a port of loopback and a journal in a folder, until its input ends. */
public final class Broker {

  public static void main(String[] arguments) throws Exception {
    String port = arguments[0], folder = arguments[1];
    ConfigurationImpl configuration = new ConfigurationImpl();
    configuration
        .setSecurityEnabled(false)
        .setPersistenceEnabled(true)
        .setJournalDirectory(folder + "/journal")
        .setBindingsDirectory(folder + "/bindings")
        .setPagingDirectory(folder + "/paging")
        .setLargeMessagesDirectory(folder + "/large")
        .addAcceptorConfiguration("amqp", "tcp://127.0.0.1:" + port + "?protocols=AMQP");
    EmbeddedActiveMQ broker = new EmbeddedActiveMQ().setConfiguration(configuration);
    broker.start();
    System.out.println("ready");
    while (System.in.read() >= 0) {}
    broker.stop();
  }

  private Broker() {}
}
