import java.time.Duration;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Kafka Streams' word count: lines of topic "lines" are cut into words, which are counted in a state store; counts go to a topic.
 *
 *   Streams BOOTSTRAP STATEDIR PROTOCOL..    an application for each group.protocol, named "count-PROTOCOL", whose counts go to the
 *                                            topic "counts-PROTOCOL"
 *
 * Each line on standard input is a question: "tasks" is answered with "tasks PROTOCOL=ACTIVE+STANDBY ...", "who" with
 * "who PROTOCOL=CLIENTID ..."; "close" ends it all, and "closed" is printed. Whenever an application fails, a line "FAIL" is printed.
 */
public class Streams {
  public static void main(String[] args) throws Exception {
    Map<String, KafkaStreams> apps = new LinkedHashMap<>();
    for (int i = 2; i < args.length; i++) {
      String protocol = args[i];
      Properties p = new Properties();
      p.put("bootstrap.servers", args[0]);
      p.put("application.id", "count-" + protocol);
      p.put("group.protocol", protocol);
      p.put("state.dir", args[1] + "/" + protocol);
      p.put("num.stream.threads", "1");
      p.put("commit.interval.ms", "100");
      p.put("statestore.cache.max.bytes", "0");
      p.put("repartition.purge.interval.ms", "200");
      p.put("auto.offset.reset", "earliest");
      p.put("default.key.serde", Serdes.StringSerde.class.getName());
      p.put("default.value.serde", Serdes.StringSerde.class.getName());
      if (protocol.equals("classic")) {
        p.put("session.timeout.ms", "600000");
        p.put("heartbeat.interval.ms", "300");
        p.put("num.standby.replicas", "1");
        p.put("probing.rebalance.interval.ms", "60000");
      }
      StreamsBuilder b = new StreamsBuilder();
      b.<String, String>stream("lines")
          .flatMapValues(line -> Arrays.asList(line.split(" ")))
          .groupBy((key, word) -> word, Grouped.as("words"))
          .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
          .toStream().to("counts-" + protocol, Produced.with(Serdes.String(), Serdes.Long()));
      KafkaStreams app = new KafkaStreams(b.build(), p);
      app.setUncaughtExceptionHandler(e -> {
        System.out.println("FAIL " + protocol + ": " + e);
        e.printStackTrace();
        return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
      });
      app.start();
      apps.put(protocol, app);
    }
    System.out.println("started");
    Scanner in = new Scanner(System.in);
    while (in.hasNextLine()) {
      switch (in.nextLine()) {
        case "tasks" -> System.out.println("tasks " + apps.entrySet().stream().map(e -> {
          int active = 0, standby = 0;
          for (ThreadMetadata t : e.getValue().metadataForLocalThreads()) {
            active += t.activeTasks().size();
            standby += t.standbyTasks().size();
          }
          return e.getKey() + "=" + (e.getValue().state() == KafkaStreams.State.RUNNING ? active + "+" + standby : "-");
        }).collect(Collectors.joining(" ")));
        case "who" -> System.out.println("who " + apps.entrySet().stream().map(e -> e.getKey() + "=" + e.getValue().metadataForLocalThreads()
            .stream().map(ThreadMetadata::consumerClientId).collect(Collectors.joining(","))).collect(Collectors.joining(" ")));
        case "close" -> {
          apps.values().forEach(app -> app.close(Duration.ofSeconds(60)));
          System.out.println("closed");
          return;
        }
      }
    }
  }
}
