import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/**
 * Writes and reads the records of package content with Kafka's own Java client.
 *
 *   Client write BOOTSTRAP TOPIC PARTITIONS COUNT CODEC [KEY=VALUE..]     record i goes to partition i % PARTITIONS
 *   Client read BOOTSTRAP TOPIC PARTITIONS COUNT [KEY=VALUE..]            prints a digest for each partition
 *   Client group BOOTSTRAP TOPIC GROUP COUNT [KEY=VALUE..]                reads as a member of a group, commits, prints how many
 *   Client batch                                                          does the above for each line of standard input
 *
 * KEY=VALUE are settings of the client.
 */
public class Client {
  static final long T0 = 1700000000000L;

  static byte[] key(int i) { return i % 7 == 0 ? null : i % 13 == 0 ? new byte[0] : ("key-" + i % 1000).getBytes(StandardCharsets.UTF_8); }

  static byte[] value(int i) {
    if (i % 11 == 0) return null;
    StringBuilder b = new StringBuilder("{\"id\":").append(i).append(",\"text\":\"");
    for (int j = 0; j < i % 17; j++) b.append("lorem-").append((i * 31 + j) % 97).append(' ');
    return b.append("\"}").toString().getBytes(StandardCharsets.UTF_8);
  }

  static List<Header> headers(int i) {
    List<Header> hs = new ArrayList<>();
    for (int j = 0; j < i % 3; j++)
      hs.add(new RecordHeader("h" + j, i % 5 == 0 ? null : ("v" + i).getBytes(StandardCharsets.UTF_8)));
    return hs;
  }

  static Properties props(String bootstrap, String[] a, int from) {
    Properties p = new Properties();
    p.put("bootstrap.servers", bootstrap);
    for (int i = from; i < a.length; i++) { int e = a[i].indexOf('='); p.put(a[i].substring(0, e), a[i].substring(e + 1)); }
    return p;
  }

  static void write(String[] a) throws Exception {
    int partitions = Integer.parseInt(a[3]), count = Integer.parseInt(a[4]);
    Properties p = props(a[1], a, 6);
    p.put("compression.type", a[5]);
    p.putIfAbsent("linger.ms", "5");
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer())) {
      List<Future<RecordMetadata>> fs = new ArrayList<>();
      for (int i = 0; i < count; i++)
        fs.add(producer.send(new ProducerRecord<>(a[2], i % partitions, T0 + i, key(i), value(i), headers(i))));
      producer.flush();
      for (Future<RecordMetadata> f : fs) f.get();
    }
    System.out.println("written " + count);
  }

  static String hex(byte[] b) { return b == null ? "null" : HexFormat.of().formatHex(b); }

  static void read(String[] a) throws Exception {
    int partitions = Integer.parseInt(a[3]), count = Integer.parseInt(a[4]);
    Properties p = props(a[1], a, 5);
    MessageDigest[] ds = new MessageDigest[partitions];
    try (KafkaConsumer<byte[], byte[]> c = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      List<TopicPartition> tps = new ArrayList<>();
      for (int i = 0; i < partitions; i++) { tps.add(new TopicPartition(a[2], i)); ds[i] = MessageDigest.getInstance("SHA-256"); }
      c.assign(tps);
      c.seekToBeginning(tps);
      int seen = 0;
      long until = System.currentTimeMillis() + 60000;
      while (seen < count && System.currentTimeMillis() < until)
        for (ConsumerRecord<byte[], byte[]> r : c.poll(Duration.ofMillis(500))) {
          StringBuilder b = new StringBuilder().append(r.offset()).append('|').append(r.timestamp()).append('|').append(hex(r.key())).append('|').append(hex(r.value()));
          for (Header h : r.headers()) b.append('|').append(h.key()).append('=').append(hex(h.value()));
          ds[r.partition()].update(b.append('\n').toString().getBytes(StandardCharsets.UTF_8));
          seen++;
        }
      System.out.println("read " + seen);
      for (int i = 0; i < partitions; i++) System.out.println(i + " " + HexFormat.of().formatHex(ds[i].digest()));
    }
  }

  static void group(String[] a) throws Exception {
    int count = Integer.parseInt(a[4]);
    Properties p = props(a[1], a, 5);
    p.put("group.id", a[3]);
    p.putIfAbsent("auto.offset.reset", "earliest");
    try (KafkaConsumer<byte[], byte[]> c = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      c.subscribe(List.of(a[2]));
      int seen = 0;
      long until = System.currentTimeMillis() + 60000;
      while (seen < count && System.currentTimeMillis() < until) seen += c.poll(Duration.ofMillis(500)).count();
      c.commitSync();
      System.out.println("read " + seen);
    }
  }

  public static void main(String[] a) throws Exception {
    if (a[0].equals("batch")) {
      for (String line : new String(System.in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) main(line.split(" "));
      return;
    }
    switch (a[0]) {
      case "write": write(a); break;
      case "read": read(a); break;
      case "group": group(a); break;
      default: throw new IllegalArgumentException(a[0]);
    }
  }
}
