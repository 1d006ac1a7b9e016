import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Members of consumer groups (KIP-848) that come, go and change, with Kafka's own Java client.
 *
 *   Groups BOOTSTRAP SCENARIO..     runs scenarios; prints a line for each step, which begins with "FAIL" if it went wrong
 *
 * Scenario "keep" has three members, prints "ready", waits for a line on standard input, and then prints where the group is.
 */
public class Groups {
  static String bootstrap;
  static Admin admin;

  /** A consumer that polls in a thread of its own. */
  static class Member implements Runnable {
    final String name;
    final KafkaConsumer<byte[], byte[]> consumer;
    final AtomicReference<Set<TopicPartition>> has = new AtomicReference<>(Set.of());
    final List<String> lost = Collections.synchronizedList(new ArrayList<>());
    final Thread thread;
    volatile boolean stop;
    volatile Throwable error;

    Member(String name, String group, Object subscription, String... settings) {
      this.name = name;
      Properties p = new Properties();
      p.put("bootstrap.servers", bootstrap);
      p.put("group.id", group);
      p.put("client.id", name);
      p.put("group.protocol", "consumer");
      for (String s : settings) { int e = s.indexOf('='); p.put(s.substring(0, e), s.substring(e + 1)); }
      if (p.get("group.protocol").equals("classic")) { p.put("session.timeout.ms", "10000"); p.put("heartbeat.interval.ms", "500"); }
      consumer = new KafkaConsumer<>(p, new ByteArrayDeserializer(), new ByteArrayDeserializer());
      ConsumerRebalanceListener l = new ConsumerRebalanceListener() {
        public void onPartitionsRevoked(Collection<TopicPartition> ps) { lost.addAll(names(ps)); }
        public void onPartitionsAssigned(Collection<TopicPartition> ps) { }
      };
      if (subscription instanceof String s) consumer.subscribe(new SubscriptionPattern(s), l);
      else consumer.subscribe(List.of((String[]) subscription), l);
      thread = new Thread(this, name);
      thread.setDaemon(true);
      thread.start();
    }

    public void run() {
      try (consumer) {
        while (!stop) { consumer.poll(Duration.ofMillis(100)); has.set(new HashSet<>(consumer.assignment())); }
      } catch (Throwable e) { error = e; }
      has.set(Set.of());
    }

    void leave() throws Exception { stop = true; thread.join(); }
  }

  static String[] topics(String... names) { return names; }

  static List<String> names(Collection<TopicPartition> ps) { return ps.stream().map(p -> p.topic() + "-" + p.partition()).sorted().collect(Collectors.toList()); }

  /** Waits until the members have all partitions among them, evenly. */
  static void settle(String what, int total, Member... ms) throws Exception {
    long begun = System.currentTimeMillis();
    while (System.currentTimeMillis() < begun + 60000) {
      Set<TopicPartition> all = new HashSet<>();
      int n = 0, least = Integer.MAX_VALUE, most = 0;
      for (Member m : ms) {
        if (m.error != null) throw new Exception(m.name, m.error);
        Set<TopicPartition> s = m.has.get();
        all.addAll(s); n += s.size(); least = Math.min(least, s.size()); most = Math.max(most, s.size());
      }
      if (n == total && all.size() == total && most - least <= 1) { System.out.println("ok " + what + ": " + (System.currentTimeMillis() - begun) + " ms"); return; }
      Thread.sleep(20);
    }
    System.out.println("FAIL " + what + ": " + Arrays.stream(ms).map(m -> m.name + names(m.has.get())).collect(Collectors.joining(" ")));
  }

  static void check(String what, boolean good, Object... about) { System.out.println((good ? "ok " : "FAIL ") + what + (good ? "" : ": " + Arrays.toString(about))); }

  static void create(String name, int partitions) throws Exception { admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get(); }

  static ConsumerGroupDescription describe(String group) throws Exception { return admin.describeConsumerGroups(List.of(group)).all().get().get(group); }

  static String where(String group) throws Exception {
    ConsumerGroupDescription d = describe(group);
    return d.type() + " " + d.groupState() + " " + d.groupEpoch().orElse(-1) + "/" + d.targetAssignmentEpoch().orElse(-1) + " " + d.members().stream()
        .map(m -> m.clientId() + "@" + m.memberEpoch().orElse(-1) + names(m.assignment().topicPartitions())).sorted().collect(Collectors.joining(" "));
  }

  static void basic() throws Exception {
    create("basic", 6);
    Member x = new Member("x", "basic", topics("basic"));
    settle("one member", 6, x);
    Member y = new Member("y", "basic", topics("basic")), z = new Member("z", "basic", topics("basic"));
    settle("three members", 6, x, y, z);
    admin.createPartitions(Map.of("basic", NewPartitions.increaseTo(9))).all().get();
    settle("more partitions", 9, x, y, z);
    y.leave();
    settle("one left", 9, x, z);
    ConsumerGroupDescription d = describe("basic");
    check("described", d.groupState().toString().equals("Stable") && d.members().size() == 2 && d.groupEpoch().equals(d.targetAssignmentEpoch()), d);
    x.leave(); z.leave();
    check("empty", describe("basic").groupState().toString().equals("Empty"));
    admin.deleteConsumerGroups(List.of("basic")).all().get();
  }

  static void range() throws Exception {
    create("range-1", 4); create("range-2", 4);
    Member x = new Member("x", "range", topics("range-1", "range-2"), "group.remote.assignor=range");
    Member y = new Member("y", "range", topics("range-1", "range-2"), "group.remote.assignor=range");
    settle("range", 8, x, y);
    check("co-partitioned", x.has.get().stream().allMatch(p -> x.has.get().contains(new TopicPartition(p.topic().equals("range-1") ? "range-2" : "range-1", p.partition()))), x.has.get());
    x.leave(); y.leave();
  }

  static void regex() throws Exception {
    create("re-1", 2); create("other", 2);
    Member x = new Member("x", "regex", "re-.*");
    settle("regular expression", 2, x);
    create("re-2", 3);
    settle("topic that matches", 5, x);
    x.leave();
  }

  static void statics() throws Exception {
    create("static", 4);
    Member x = new Member("x", "static", topics("static"), "group.instance.id=i1"), y = new Member("y", "static", topics("static"), "group.instance.id=i2");
    settle("static members", 4, x, y);
    Set<TopicPartition> had = y.has.get();
    int epoch = describe("static").groupEpoch().get();
    y.leave();
    check("place is kept", describe("static").members().size() == 2);
    Member again = new Member("again", "static", topics("static"), "group.instance.id=i2");
    settle("static member is back", 4, x, again);
    check("same partitions, same epoch", had.equals(again.has.get()) && describe("static").groupEpoch().get() == epoch, had, again.has.get());
    admin.removeMembersFromConsumerGroup("static", new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("i2")))).all().get();
    again.stop = true;
    settle("static member is removed", 4, x);
    x.leave();
  }

  static void migrate() throws Exception {
    create("migrate", 6);
    Member x = new Member("x", "migrate", topics("migrate"), "group.protocol=classic"), y = new Member("y", "migrate", topics("migrate"), "group.protocol=classic");
    settle("classic", 6, x, y);
    Member z = new Member("z", "migrate", topics("migrate"));
    settle("first of the new protocol", 6, x, y, z);
    check("consumer group", describe("migrate").type().toString().equals("Consumer"));
    Member w = new Member("w", "migrate", topics("migrate"), "group.protocol=classic");
    settle("another classic one", 6, x, y, z, w);
    z.leave();
    settle("last of the new protocol has left", 6, x, y, w);
    check("classic group", describe("migrate").type().toString().equals("Classic"));
    Member v = new Member("v", "migrate", topics("migrate"));
    settle("again one of the new protocol", 6, x, y, w, v);
    x.leave(); y.leave(); w.leave();
    settle("only the new protocol", 6, v);
    v.leave();
  }

  static void tenth() throws Exception {
    create("tenth", 90);
    List<Member> ms = new ArrayList<>();
    for (int i = 0; i < 9; i++) ms.add(new Member("m" + i, "tenth", topics("tenth")));
    settle("nine members", 90, ms.toArray(new Member[0]));
    for (Member m : ms) m.lost.clear();
    ms.add(new Member("m9", "tenth", topics("tenth")));
    settle("tenth member", 90, ms.toArray(new Member[0]));
    check("only what moves stops", ms.stream().allMatch(m -> m.lost.size() == (m.name.equals("m9") ? 0 : 1)), ms.stream().map(m -> m.lost).toList());
    for (Member m : ms) m.stop = true;
    for (Member m : ms) m.leave();
  }

  /** Groups of both protocols, and one with members of both, whose coordinator is replaced meanwhile. */
  static void keep() throws Exception {
    String[] groups = {"keep", "keep-classic", "keep-mixed"};
    for (String g : groups) create(g, 6);
    String classic = "group.protocol=classic", cooperative = "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
    Member x = new Member("x", "keep", topics("keep")), y = new Member("y", "keep", topics("keep")), z = new Member("z", "keep", "keep", "group.instance.id=i");
    Member[] old = {new Member("ox", "keep-classic", topics("keep-classic"), classic, cooperative),
        new Member("oy", "keep-classic", topics("keep-classic"), classic, cooperative, "group.instance.id=oi")};
    Member[] mixed = {new Member("mx", "keep-mixed", topics("keep-mixed"), classic, cooperative), null};
    settle("a classic member", 6, mixed[0]);
    mixed[1] = new Member("my", "keep-mixed", topics("keep-mixed"));
    Member[] all = {x, y, z, old[0], old[1], mixed[0], mixed[1]};
    settle("three members", 6, x, y, z);
    settle("two classic members", 6, old);
    settle("two members of both protocols", 6, mixed);
    for (String g : groups) while (!describe(g).groupState().toString().equals("Stable")) Thread.sleep(100);
    for (Member m : all) m.lost.clear();
    for (String g : groups) System.out.println("where " + where(g));
    System.out.println("ready");
    System.in.read();
    for (String g : groups) {
      long until = System.currentTimeMillis() + 60000;
      String w = "";
      while (System.currentTimeMillis() < until && !w.contains(" Stable ")) try { w = where(g); } catch (Exception e) { Thread.sleep(200); }
    }
    Thread.sleep(3000); // several heartbeats
    for (String g : groups) System.out.println("where " + where(g));
    settle("still three members", 6, x, y, z);
    settle("still two classic members", 6, old);
    settle("still two of both protocols", 6, mixed);
    for (Member m : all) check(m.name + " had to give nothing up", m.lost.isEmpty(), m.lost);
  }

  public static void main(String[] a) throws Exception {
    bootstrap = a[0];
    admin = Admin.create(Map.of("bootstrap.servers", (Object) bootstrap));
    for (int i = 1; i < a.length; i++)
      switch (a[i]) {
        case "basic": basic(); break;
        case "range": range(); break;
        case "regex": regex(); break;
        case "static": statics(); break;
        case "migrate": migrate(); break;
        case "tenth": tenth(); break;
        case "keep": keep(); break;
        default: throw new IllegalArgumentException(a[i]);
      }
    System.out.println("done");
    System.exit(0);
  }
}
