"use strict";
// Scenarios of a user of JavaScript, with the client rhea: node scenarios.js SCENARIO PORT TOPIC
const assert = require("node:assert");
const rhea = require("rhea");

const LIMIT_MS = 60_000;
const [scenario, port, topic] = process.argv.slice(2);

function connect(containerId) {
  const container = rhea.create_container();
  const connection = container.connect({
    host: "127.0.0.1", port: Number(port), username: "anonymous", reconnect: false,
    container_id: containerId || "ID:" + container.id,
  });
  return connection;
}

function once(emitter, name) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("no " + name + " in time")), LIMIT_MS);
    emitter.once(name, (context) => { clearTimeout(timer); resolve(context); });
  });
}

async function receiverOf(connection, source, options = {}) {
  const receiver = connection.open_receiver({ source, credit_window: 0, autoaccept: false, ...options });
  await once(receiver, "receiver_open");
  return receiver;
}

async function senderTo(connection, target) {
  const sender = connection.open_sender(target);
  await once(sender, "sendable");
  return sender;
}

async function send(sender, message) {
  sender.send(message);
  await once(sender, "accepted");
}

async function next(receiver) {
  const coming = once(receiver, "message");
  receiver.add_credit(1);
  const context = await coming;
  context.delivery.accept();
  return context.message;
}

// Bodies, properties and fields of messages.
async function messages() {
  const connection = connect();
  const receiver = await receiverOf(connection, topic);
  const sender = await senderTo(connection, topic);
  const bodies = ["text", "", { a: 1, b: [true, "x"] }, [1, "two", null], 7, true, rhea.message.data_section(Buffer.from([1, 2]))];
  for (const body of bodies) await send(sender, { body, application_properties: { n: 5, s: "x" }, subject: "kind", correlation_id: "c" });
  for (const body of bodies) {
    const message = await next(receiver);
    if (typeof body === "object" && body.typecode === 0x75) assert.deepStrictEqual(message.body.content, Buffer.from([1, 2]));
    else assert.deepStrictEqual(message.body, body);
    assert.strictEqual(message.application_properties.n, 5);
    assert.strictEqual(message.subject, "kind");
    assert.strictEqual(message.correlation_id, "c");
  }
  connection.close();
}

// A durable subscription keeps messages while its client is away.
async function durable() {
  const source = { address: topic, durable: 2, expiry_policy: "never" };
  let connection = connect("app");
  let receiver = await receiverOf(connection, source, { name: "dur" });
  const sender = await senderTo(connection, topic);
  await send(sender, { body: "first" });
  assert.strictEqual((await next(receiver)).body, "first");
  receiver.detach();
  await once(receiver, "receiver_detached").catch(() => {});
  await send(sender, { body: "second" });
  connection.close();
  await once(connection, "connection_close");
  connection = connect("app");
  receiver = await receiverOf(connection, source, { name: "dur" });
  assert.strictEqual((await next(receiver)).body, "second");
  receiver.close();
  await once(receiver, "receiver_close");
  connection.close();
}

// Request and reply by a queue and a dynamic source.
async function asking() {
  const connection = connect();
  const requests = await receiverOf(connection, "queue://" + topic);
  const replies = await receiverOf(connection, { dynamic: true });
  const sender = await senderTo(connection, "queue://" + topic);
  await send(sender, { body: "ping", reply_to: replies.source.address, correlation_id: "7" });
  const request = await next(requests);
  const relay = await senderTo(connection, {});
  await send(relay, { to: request.reply_to, body: request.body + "!", correlation_id: request.correlation_id });
  const reply = await next(replies);
  assert.deepStrictEqual([reply.body, reply.correlation_id], ["ping!", "7"]);
  connection.close();
}

// What Qpid JMS has sent to the shared durable subscription `rhea`.
async function kinds() {
  const connection = connect();
  const receiver = await receiverOf(connection, topic + "::rhea");
  const bodies = [];
  for (let n = 0; n < 6; n++) {
    const { body, application_properties: found } = await next(receiver);
    bodies.push(body);
    assert.deepStrictEqual({ ...found }, { bo: true, by: -1, sh: 300, it: 70000, lo: 5, fl: 1.5, du: 2.25, st: "s" });
  }
  const [text, bytes, map, stream, object, none] = bodies;
  assert.strictEqual(text, "text");
  assert.deepStrictEqual(bytes.content, Buffer.from([1, 255]));
  assert.deepStrictEqual({ ...map, b: [...map.b] }, { a: 1, s: "x", b: [1, 2] });
  assert.deepStrictEqual(stream.content, [4, "z"]); // a section with a sequence
  assert.strictEqual(object.content.readUInt16BE(0), 0xaced); // as Java serializes it
  assert.ok(none === null || none === undefined);
  connection.close();
}

// A text and a map, for readers in other languages.
async function sending() {
  const connection = connect();
  const sender = await senderTo(connection, topic);
  await send(sender, { body: "of JavaScript", application_properties: { s: "x" } });
  await send(sender, { body: { a: "one" }, message_annotations: { "x-opt-jms-msg-type": rhea.types.wrap_byte(2) } });
  connection.close();
}

const SCENARIOS = { messages, durable, asking, kinds, sending };
SCENARIOS[scenario]().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
