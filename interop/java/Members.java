import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.regex.Pattern;
import java.util.stream.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Members of groups with Kafka's own Java client, told what to do by lines of standard input:
 *
 *   start NAME GROUP SUBSCRIPTION KEY=VALUE..    SUBSCRIPTION is topics separated by commas, or ^ and a regular expression
 *   stall NAME, resume NAME                      it doesn't poll any more, and does again
 *   leave NAME
 *
 * and telling what happens: "has NAME PARTITIONS" when that changes, "lost NAME PARTITIONS", "gone NAME" when it has left, "error NAME TEXT".
 */
public class Members {
  static String bootstrap;

  static synchronized void say(String line) { System.out.println(line); }

  static String names(Collection<TopicPartition> ps) {
    return ps.isEmpty() ? "-" : ps.stream().map(p -> p.topic() + "-" + p.partition()).sorted().collect(Collectors.joining(","));
  }

  static class Member implements Runnable {
    final String name;
    final KafkaConsumer<byte[], byte[]> consumer;
    volatile boolean stalled, stop;
    String had = "-";

    Member(String name, String group, String subscription, List<String> settings) {
      this.name = name;
      Properties p = new Properties();
      p.put("bootstrap.servers", bootstrap);
      p.put("group.id", group);
      p.put("client.id", name);
      p.put("metadata.max.age.ms", "500");
      p.put("enable.auto.commit", "true");
      for (String s : settings) { int e = s.indexOf('='); p.put(s.substring(0, e), s.substring(e + 1)); }
      consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
      ConsumerRebalanceListener l = new ConsumerRebalanceListener() {
        public void onPartitionsRevoked(Collection<TopicPartition> ps) { if (!ps.isEmpty()) say("lost " + name + " " + names(ps)); }
        public void onPartitionsAssigned(Collection<TopicPartition> ps) { }
      };
      if (!subscription.startsWith("^")) consumer.subscribe(List.of(subscription.split(",")), l);
      else if ("consumer".equals(p.get("group.protocol"))) consumer.subscribe(new SubscriptionPattern(subscription.substring(1)), l);
      else consumer.subscribe(Pattern.compile(subscription), l);
      Thread t = new Thread(this, name);
      t.setDaemon(true);
      t.start();
    }

    public void run() {
      try (consumer) {
        while (!stop) {
          if (stalled) { Thread.sleep(50); continue; }
          consumer.poll(Duration.ofMillis(100));
          String has = names(consumer.assignment());
          if (!has.equals(had)) { had = has; say("has " + name + " " + has); }
        }
      } catch (Throwable e) {
        say("error " + name + " " + e);
      }
      say("gone " + name);
    }
  }

  public static void main(String[] a) throws Exception {
    bootstrap = a[0];
    Map<String, Member> members = new HashMap<>();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line; (line = in.readLine()) != null; ) {
      String[] w = line.split(" ");
      switch (w[0]) {
        case "start": members.put(w[1], new Member(w[1], w[2], w[3], Arrays.asList(w).subList(4, w.length))); break;
        case "stall": members.get(w[1]).stalled = true; break;
        case "resume": members.get(w[1]).stalled = false; break;
        case "leave": members.get(w[1]).stop = true; break;
        default: throw new IllegalArgumentException(line);
      }
    }
    Runtime.getRuntime().halt(0);
  }
}
