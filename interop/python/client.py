"""Writes and reads the records of package content with confluent-kafka (librdkafka).

    client.py write BOOTSTRAP TOPIC PARTITIONS COUNT CODEC [KEY=VALUE..]
    client.py read BOOTSTRAP TOPIC PARTITIONS COUNT [KEY=VALUE..]
    client.py group BOOTSTRAP TOPIC GROUP COUNT [KEY=VALUE..]
    client.py batch         does the above for each line of standard input

KEY=VALUE are settings of librdkafka.
"""

import hashlib
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

T0 = 1700000000000


def key(i):
    if i % 7 == 0:
        return None
    if i % 13 == 0:
        return b""
    return b"key-%d" % (i % 1000)


def value(i):
    if i % 11 == 0:
        return None
    text = "".join("lorem-%d " % ((i * 31 + j) % 97) for j in range(i % 17))
    return ('{"id":%d,"text":"%s"}' % (i, text)).encode()


def headers(i):
    return [("h%d" % j, None if i % 5 == 0 else b"v%d" % i) for j in range(i % 3)]


def settings(bootstrap, args):
    conf = {"bootstrap.servers": bootstrap}
    conf.update(a.split("=", 1) for a in args)
    return conf


def write(bootstrap, topic, partitions, count, codec, *args):
    conf = {"compression.type": codec, "linger.ms": "5", "queue.buffering.max.messages": "1000000"}
    producer = Producer({**conf, **settings(bootstrap, args)})
    failed = []

    def done(err, _):
        if err:
            failed.append(err)

    for i in range(int(count)):
        producer.produce(topic, value(i), key(i), partition=i % int(partitions), timestamp=T0 + i, headers=headers(i), on_delivery=done)
        if i % 1000 == 0:
            producer.poll(0)
    producer.flush(60)
    if failed or len(producer):
        sys.exit("%d records failed, the first with %s" % (len(failed) or len(producer), failed[:1]))
    print("written", count)


def read(bootstrap, topic, partitions, count, *args):
    consumer = Consumer({"group.id": "unused", "enable.auto.commit": "false", **settings(bootstrap, args)})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(int(partitions))])
    digests = [hashlib.sha256() for _ in range(int(partitions))]
    seen, until = 0, time.time() + 60

    def text(b):
        return "null" if b is None else b.hex()

    while seen < int(count) and time.time() < until:
        for m in consumer.consume(1000, 0.5):
            if m.error():
                sys.exit(str(m.error()))
            line = "%d|%d|%s|%s" % (m.offset(), m.timestamp()[1], text(m.key()), text(m.value()))
            for k, v in m.headers() or []:
                line += "|%s=%s" % (k, text(v))
            digests[m.partition()].update((line + "\n").encode())
            seen += 1
    consumer.close()
    print("read", seen)
    for p, d in enumerate(digests):
        print(p, d.hexdigest())


def group(bootstrap, topic, group_id, count, *args):
    consumer = Consumer({"group.id": group_id, "auto.offset.reset": "earliest", **settings(bootstrap, args)})
    consumer.subscribe([topic])
    seen, until = 0, time.time() + 60
    while seen < int(count) and time.time() < until:
        for m in consumer.consume(1000, 0.5):
            if m.error():
                sys.exit(str(m.error()))
            seen += 1
    consumer.commit(asynchronous=False)
    consumer.close()
    print("read", seen)


commands = {"write": write, "read": read, "group": group}
for argv in [line.split() for line in sys.stdin] if sys.argv[1] == "batch" else [sys.argv[1:]]:
    commands[argv[0]](*argv[1:])
