// openai-node: connections that last, and conversations that grow long.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';
import {
  BASE,
  MODEL,
  NotApplicable,
  SMALL_MODEL,
  THRESHOLD,
  WEATHER,
  CITY,
  checkCompacted,
  checkCut,
  pastThreshold,
  sand,
  tooLong,
  weather,
} from './kit.js';

const client = new OpenAI({ baseURL: BASE, apiKey: 'none', maxRetries: 0 });
const REMEMBER = { role: 'user', content: 'case:remember' };
const ENDINGS = ['response.completed', 'response.incomplete', 'response.failed'];

/** A WebSocket, on which `turn` gives the response that one request came to, or throws the error event. */
async function connected(use) {
  const socket = new ResponsesWS(client);
  let hear = () => {};
  socket.on('event', (event) => hear(event));
  socket.on('error', () => {}); // what the events tell as well
  const turn = (body) =>
    new Promise((resolve, reject) => {
      let next = 0;
      hear = (event) => {
        if (event.type === 'error') return reject(event);
        if (event.sequence_number !== next++) return reject(new Error(`a gap before ${JSON.stringify(event)}`));
        if (ENDINGS.includes(event.type)) resolve(event.response);
      };
      socket.send({ type: 'response.create', model: MODEL, store: false, ...body });
    });
  try {
    return await use(turn);
  } finally {
    socket.close();
  }
}

const textOf = (response) => response.output.flatMap((item) => item.content ?? []).map((part) => part.text).join('');

export const long = {
  async websocket({ streamed }, tag) {
    if (!streamed) throw new NotApplicable('a WebSocket always streams');
    await connected(async (turn) => {
      const first = await turn({ input: tag.cue('plain I am Ada.') });
      const second = await turn({ input: 'case:remember', previous_response_id: first.id });
      const said = `user: ${tag.cue('plain I am Ada.')} | assistant: ${textOf(first)} | user: case:remember`;
      assert.equal(textOf(second), said);
      const call = await turn({ input: tag.cue(`function call:weather{"city": "${CITY}"}`), tools: [WEATHER] });
      const { call_id, arguments: given } = call.output[0];
      const output = weather(JSON.parse(given));
      const input = [{ type: 'function_call_output', call_id, output }];
      const ended = await turn({ input, tools: [WEATHER], previous_response_id: call.id });
      assert.equal(textOf(ended), `The tool says: sun in ${CITY}.`);
      const unknown = turn({ input: 'case:plain', previous_response_id: 'resp_nobody' });
      await assert.rejects(unknown, (event) => event.error.code === 'previous_response_not_found');
      const wrong = turn({ input: 'case:plain', temperature: 9 });
      await assert.rejects(wrong, (event) => event.status === 400 && event.error.param === 'temperature');
      assert.equal((await turn({ input: tag.cue('plain') })).status, 'completed');
    });
  },

  async conversation({ ask }, tag) {
    const made = await client.conversations.create({ metadata: { topic: 'walrus' } });
    const { response, text: said } = await ask({ input: tag.cue('plain I am Ada.'), conversation: made.id });
    assert.equal(response.conversation.id, made.id);
    const { text } = await ask({ input: 'case:remember', conversation: { id: made.id } });
    assert.equal(text, `user: ${tag.cue('plain I am Ada.')} | assistant: ${said} | user: case:remember`);
    const added = await client.conversations.items.create(made.id, { items: [REMEMBER] });
    assert.equal(added.data.length, 1);
    const items = [];
    for await (const item of client.conversations.items.list(made.id, { order: 'asc', limit: 2 })) items.push(item);
    assert.deepEqual(items.map((item) => item.role), ['user', 'assistant', 'user', 'assistant', 'user']);
    const [first] = items;
    assert.deepEqual(await client.conversations.items.retrieve(first.id, { conversation_id: made.id }), first);
    await client.conversations.items.delete(first.id, { conversation_id: made.id });
    const changed = await client.conversations.update(made.id, { metadata: { topic: 'sand' } });
    assert.deepEqual((await client.conversations.retrieve(made.id)).metadata, changed.metadata);
    assert.equal((await client.conversations.delete(made.id)).deleted, true);
    await assert.rejects(client.conversations.retrieve(made.id), OpenAI.NotFoundError);
  },

  async compaction({ ask }, tag) {
    const history = pastThreshold(tag);
    const compacted = await client.responses.compact({ model: MODEL, input: history.slice(0, -1) });
    assert.equal(compacted.object, 'response.compaction');
    assert.equal(compacted.output.filter((item) => item.type === 'compaction').length, 1);
    const { text } = await ask({ input: [...compacted.output, REMEMBER], store: false });
    await checkCompacted(tag, text);
  },

  async 'auto-compaction'({ ask }, tag) {
    const managed = { store: false, context_management: [{ type: 'compaction', compact_threshold: THRESHOLD }] };
    const history = pastThreshold(tag);
    const { response, text } = await ask({ ...managed, input: history });
    assert.equal(response.output.filter((item) => item.type === 'compaction').length, 1);
    await checkCompacted(tag, text);
    const second = await ask({ ...managed, input: [...history, ...response.output, REMEMBER] });
    await checkCompacted(tag, second.text);
  },

  async 'input-tokens'({ streamed }, tag) {
    if (streamed) throw new NotApplicable('a count is one number');
    const short = await client.responses.inputTokens.count({ model: MODEL, input: tag.word });
    const long = await client.responses.inputTokens.count({ model: MODEL, input: `${tag.word} ${sand(500)}` });
    assert.equal(short.object, 'response.input_tokens');
    assert.ok(short.input_tokens > 0 && short.input_tokens < long.input_tokens);
    assert.deepEqual(await tag.asked(), []);
  },

  async truncation({ ask }, tag) {
    const body = { model: SMALL_MODEL, input: tooLong(tag), store: false };
    checkCut((await ask({ ...body, truncation: 'auto' })).text);
    await assert.rejects(
      ask({ ...body, truncation: 'disabled' }),
      (error) => error instanceof OpenAI.BadRequestError && error.code === 'context_length_exceeded',
    );
  },
};
