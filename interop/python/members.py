"""Members of groups with confluent-kafka (librdkafka), told what to do by lines of standard input; see Members.java.

    members.py BOOTSTRAP
"""

import os
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException

lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def names(partitions):
    return ",".join(sorted("%s-%d" % (p.topic, p.partition) for p in partitions)) or "-"


class Member(threading.Thread):
    def __init__(self, name, group, subscription, settings):
        super().__init__(daemon=True)
        self.name, self.stalled, self.stop, self.had = name, False, False, "-"
        conf = {"bootstrap.servers": sys.argv[1], "group.id": group, "client.id": name, "topic.metadata.refresh.interval.ms": "500"}
        conf.update(s.split("=", 1) for s in settings)
        self.cooperative = conf.get("group.protocol") == "consumer" or conf.get("partition.assignment.strategy") == "cooperative-sticky"
        self.consumer = Consumer(conf)
        topics = [subscription] if subscription.startswith("^") else subscription.split(",")
        self.consumer.subscribe(topics, on_revoke=self.lost, on_lost=self.lost)

    def lost(self, _, partitions):
        if partitions:
            say("lost", self.name, names(partitions))

    def run(self):
        try:
            while not self.stop:
                if self.stalled:
                    time.sleep(0.05)
                    continue
                message = self.consumer.poll(0.1)
                if message is not None and message.error() and message.error().fatal():
                    raise KafkaException(message.error())
                has = names(self.consumer.assignment())
                if has != self.had:
                    self.had = has
                    say("has", self.name, has)
            self.consumer.close()
        except Exception as e:
            say("error", self.name, repr(e))
        say("gone", self.name)


members = {}
for line in sys.stdin:
    words = line.split()
    if words[0] == "start":
        members[words[1]] = Member(words[1], words[2], words[3], words[4:])
        members[words[1]].start()
    elif words[0] == "stall":
        members[words[1]].stalled = True
    elif words[0] == "resume":
        members[words[1]].stalled = False
    elif words[0] == "leave":
        members[words[1]].stop = True
os._exit(0)
