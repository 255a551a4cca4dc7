# Runs inside the container, of the official image or ours: formats the storage once, then becomes the broker.
# The arguments are for formatting. Class paths stay unexpanded: Java itself reads the asterisk.
set -e
export CLASSPATH='/opt/kafka/libs/*'
data=/var/lib/detent/data
settings=/etc/detent

small="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.awt.headless=true"
simple=-Dorg.slf4j.simpleLogger
log="$simple.defaultLogLevel=warn $simple.showDateTime=true -Dlog4j2.level=WARN"
# A node that comes back may have another address, so names are looked up each time.
names="-Dsun.net.inetaddr.ttl=0 -Djava.net.preferIPv4Stack=true"

if ! test -e $data/meta.properties; then
  java -Xmx128m $small $log kafka.tools.StorageTool format "$@" --config $settings/server.properties >/dev/null
elif test -e $settings/fencing.properties && ! test -e $data/.kafka_cleanshutdown; then
  # It was killed and is alone: end its last session before it comes back. events/broker_launch.py says why; after so
  # many looks of the controller there is no stale broker.
  debug="$simple.log.org.apache.kafka.controller.QuorumController=debug -Dlog4j2.level=DEBUG"
  java -Xmx256m $small $log $debug $names kafka.Kafka $settings/fencing.properties >/tmp/fencing.log 2>&1 &
  until test "$(grep -c 'Processed maybeFenceStaleBroker(' /tmp/fencing.log)" -ge 50; do
    kill -0 $! || { cat /tmp/fencing.log; exit 1; }
    sleep 0.05
  done
  kill -9 $!
fi
exec java -Xmx384m $small $log $names kafka.Kafka $settings/server.properties
