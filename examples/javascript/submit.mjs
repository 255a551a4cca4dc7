// Submits a job to Detent and waits for its end, by the contract alone (docs/contract.md): no library of Detent's.
//
//   npm install
//   node submit.mjs 127.0.0.1:9092 detent hello job.json
//
// The log describes itself: the schemas to write and read with are on it.

import { readFile } from "node:fs/promises";
import { randomUUID } from "node:crypto";
import avro from "avsc";
import kafkajs from "kafkajs";
import lz4 from "lz4js";

const { CompressionCodecs, CompressionTypes, Kafka, Partitioners, logLevel } = kafkajs;
const [servers, prefix, job, file] = process.argv.slice(2);
if (!file) {
  console.error("usage: node submit.mjs BOOTSTRAP_SERVERS PREFIX JOB SPECIFICATION.json");
  process.exit(2);
}

// Detent's topics are compressed with LZ4, which KafkaJS has no codec of its own for.
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});

const kafka = new Kafka({ clientId: "example", brokers: servers.split(","), logLevel: logLevel.ERROR });

/** Every record of a topic from its beginning, until `take` says that it has what it wants. */
async function read(topic, take) {
  const consumer = kafka.consumer({ groupId: `example-${randomUUID()}` }); // committed records only, by default
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  try {
    return await new Promise((resolve, reject) => {
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ message }) => {
          const found = take(message);
          if (found !== undefined) resolve(found);
        },
      }).catch(reject);
    });
  } finally {
    await consumer.disconnect();
  }
}

/** The schemas on the log: by fingerprint, to read with; and the newest Command, to write with. */
async function readSchemas() {
  const admin = kafka.admin();
  await admin.connect();
  const [{ high }] = await admin.fetchTopicOffsets(`${prefix}.schemas`);
  await admin.disconnect();
  const types = new Map();
  let command;
  return read(`${prefix}.schemas`, (message) => {
    if (message.value) {
      const fingerprint = message.key.toString();
      const schema = JSON.parse(message.value.toString());
      types.set(fingerprint, avro.Type.forSchema(schema, { wrapUnions: true }));
      if (`${schema.namespace}.${schema.name}` === "detent.Command") command = fingerprint;
    }
    return Number(message.offset) + 1 >= Number(high) ? { types, command } : undefined;
  });
}

const { types, command } = await readSchemas();

/** Avro single-object encoding: C3 01, the fingerprint, the record. */
const encode = (fingerprint, record) =>
  Buffer.concat([Buffer.from([0xc3, 0x01]), Buffer.from(fingerprint, "hex"), types.get(fingerprint).toBuffer(record)]);
const decode = (value) => types.get(value.subarray(2, 10).toString("hex")).fromBuffer(value.subarray(10));

// Asking again with the same id is safe: it is never done twice, and the answer is the first one.
const id = randomUUID();
const specification = await readFile(file, "utf8");
const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner }); // Kafka's own hash of the key
await producer.connect();
await producer.send({
  topic: `${prefix}.commands`,
  acks: -1,
  messages: [
    {
      key: job,
      value: encode(command, {
        id, job, by: "the JavaScript example", time: Date.now(), action: { "detent.Submit": { specification } },
      }),
    },
  ],
});
await producer.disconnect();

const ENDS = ["FINISHED", "FAILED", "CANCELED", "SAVEPOINTED"];
const name = encodeURIComponent(job).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`); // as in keys
let incarnation;
const end = await read(`${prefix}.events`, (message) => {
  const key = message.key?.toString();
  if (!message.value || (key !== `command/${name}/${id}` && key !== `job/${name}`)) return undefined;
  const event = decode(message.value);
  if (key.startsWith("command/")) {
    const outcome = event.state["detent.Outcome"];
    console.log(`${event.to}: ${outcome.reason}`);
    incarnation = event.incarnation;
    return event.to === "REFUSED" ? event.to : undefined;
  }
  if (event.incarnation === incarnation) console.log(`${event.from || "·"} → ${event.to}`);
  return event.incarnation === incarnation && ENDS.includes(event.to) ? event.to : undefined;
});
process.exit(end === "FINISHED" ? 0 : 1);
