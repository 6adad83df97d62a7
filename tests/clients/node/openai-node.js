// openai-node: responses.create, responses.create with stream, and the responses.stream helper.

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { long } from './openai-node-long.js';
import {
  ADA,
  BASE,
  CITY,
  MODEL,
  NotApplicable,
  PIXEL_SEEN,
  PIXEL_URL,
  REMOTE_IMAGE,
  WEATHER,
  WHOLE,
  impatientFetch,
  runAll,
  thrownBy,
  versionOf,
  weather,
} from './kit.js';

const usual = { baseURL: BASE, apiKey: 'none', maxRetries: 0 };
const client = new OpenAI(usual);
const impatient = new OpenAI({ ...usual, fetch: impatientFetch });
const Person = z.object({ name: z.string(), age: z.number().int() });

// ---- three ways to ask: each gives {response, text, reasoning} ----

const reasoningOf = (item) => (item.content?.length ? item.content : item.summary).map((part) => part.text).join('');

async function create(body) {
  const response = await client.responses.create({ model: MODEL, ...body });
  const reasoning = response.output.filter((item) => item.type === 'reasoning').map(reasoningOf).join('');
  return { response, text: response.output_text, reasoning };
}

const THOUGHTS = ['response.reasoning_text.delta', 'response.reasoning_summary_text.delta'];
const TERMINAL = ['response.completed', 'response.incomplete', 'response.failed'];

function keep(kept, event) {
  assert.equal(event.sequence_number, kept.events.length);
  kept.events.push(event);
  if (event.type === 'response.output_text.delta') kept.text += event.delta;
  if (THOUGHTS.includes(event.type)) kept.reasoning += event.delta;
  if (TERMINAL.includes(event.type)) kept.response = event.response;
}

async function createStream(body, by = client) {
  const kept = { text: '', reasoning: '', events: [] };
  for await (const event of await by.responses.create({ model: MODEL, ...body, stream: true })) keep(kept, event);
  assert.equal(kept.events[0].type, 'response.created');
  assert.ok(kept.response, 'no terminal event');
  return kept;
}

async function stream(body, by = client) {
  const kept = { text: '', reasoning: '', events: [] };
  const running = by.responses.stream({ model: MODEL, ...body });
  for await (const event of running) keep(kept, event);
  return { ...kept, response: await running.finalResponse() };
}

const ways = [
  { label: 'create', streamed: false, ask: create },
  { label: 'create stream', streamed: true, ask: createStream },
  { label: 'stream()', streamed: true, ask: stream },
];

// ---- parts of cases ----

const callsOf = (response) => response.output.filter((item) => item.type === 'function_call');
const resultOf = (call, output) => ({ type: 'function_call_output', call_id: call.call_id, output });
const answered = (response) =>
  callsOf(response).map((call) => resultOf(call, weather(JSON.parse(call.arguments))));
const pictured = (cue, image_url) => [
  { role: 'user', content: [{ type: 'input_text', text: cue }, { type: 'input_image', image_url, detail: 'auto' }] },
];

/** A failure that comes before the first byte: the class of this status, with the message. */
async function refused({ ask }, body, errorClass, status, message) {
  const error = await thrownBy(() => ask(body));
  assert.ok(error instanceof errorClass, `${error?.constructor?.name}: ${error}`);
  assert.equal(error.status, status);
  assert.match(error.message, message);
  return error;
}

/** A failure after the backend has begun to answer: the response itself tells of it. */
async function failed({ ask }, body) {
  const { response } = await ask(body);
  assert.equal(response.status, 'failed');
  assert.equal(typeof response.error.code, 'string');
  return response.error;
}

const cases = {
  async plain({ ask }, tag) {
    const { response, text } = await ask({ input: tag.cue('plain hello'), metadata: { a: 'b' } });
    assert.equal(text, `You said: hello ${tag.word}`);
    assert.equal(response.status, 'completed');
    assert.equal(response.model, MODEL);
    assert.deepEqual(response.metadata, { a: 'b' });
    assert.ok(response.usage.input_tokens > 0 && response.usage.output_tokens > 0);
    const kept = await client.responses.retrieve(response.id);
    assert.equal(kept.output_text, text);
    const told = await ask({ input: tag.cue('instructions'), instructions: 'Be kind.' });
    assert.equal(told.text, 'I am told: Be kind.');
  },

  async function({ ask }, tag) {
    const input = tag.cue(`function call:weather{"city": "${CITY}"}`);
    const { response } = await ask({ input, tools: [WEATHER] });
    const [call] = callsOf(response);
    assert.equal(call.name, 'weather');
    assert.deepEqual(JSON.parse(call.arguments), { city: CITY });
    const { text } = await ask({ previous_response_id: response.id, input: answered(response), tools: [WEATHER] });
    assert.equal(text, `The tool says: sun in ${CITY}.`);
    const [asked] = await tag.asked();
    assert.deepEqual(asked.tools[0].function.parameters, WEATHER.parameters);
  },

  async parallel({ ask }, tag) {
    const input = tag.cue('parallel call:weather{"city": "Oslo"} call:weather{"city": "Rome"}');
    const { response } = await ask({ input, tools: [WEATHER] });
    assert.equal(callsOf(response).length, 2);
    assert.notEqual(...callsOf(response).map((call) => call.call_id));
    const { text } = await ask({ previous_response_id: response.id, input: answered(response), tools: [WEATHER] });
    assert.equal(text, 'The tools say: sun in Oslo and sun in Rome.');
  },

  async structured({ ask, label }, tag) {
    const person = { format: zodTextFormat(Person, 'person') };
    const body = { input: tag.cue(`structured ${JSON.stringify(ADA)}`), text: person };
    if (label === 'create') {
      const parsed = await client.responses.parse({ model: MODEL, ...body });
      assert.deepEqual(parsed.output_parsed, ADA);
    }
    const { response, text } = await ask(body);
    assert.deepEqual(JSON.parse(text), ADA);
    if (label === 'stream()') assert.deepEqual(response.output_parsed, ADA);
    const [asked] = await tag.asked();
    assert.deepEqual(asked.response_format.json_schema.schema.required, ['name', 'age']);
  },

  async reasoning({ ask }, tag) {
    const input = tag.cue('reasoning walrus');
    const raw = await ask({ input });
    assert.equal(raw.reasoning, `First I think about it: walrus ${tag.word}`);
    assert.equal(raw.text, `I have thought about: walrus ${tag.word}`);
    const shown = await ask({ input, reasoning: { summary: 'auto' } });
    const [item] = shown.response.output.filter((each) => each.type === 'reasoning');
    assert.equal(item.summary.map((part) => part.text).join(''), `First I think about it: walrus ${tag.word}`);
  },

  async 'sealed-reasoning'({ ask }, tag) {
    const stateless = { store: false, include: ['reasoning.encrypted_content'], tools: [WEATHER] };
    const first = [{ role: 'user', content: tag.cue(`reasoning call:weather{"city": "${CITY}"}`) }];
    const { response } = await ask({ ...stateless, input: first });
    const [thought] = response.output.filter((each) => each.type === 'reasoning');
    assert.ok(thought.encrypted_content, 'nothing is sealed');
    const bared = { ...thought, content: undefined, summary: [] };
    const bare = response.output.map((each) => (each === thought ? bared : each));
    const { text } = await ask({ ...stateless, input: [...first, ...bare, ...answered(response)] });
    assert.equal(text, `The tool says: sun in ${CITY}. I had thought: First I think about it: weather`);
  },

  async image({ ask }, tag) {
    const data = await ask({ input: pictured(tag.cue('image'), PIXEL_URL) });
    assert.equal(data.text, `I see an image, ${PIXEL_SEEN}.`);
    const remote = await ask({ input: pictured(tag.cue('image'), REMOTE_IMAGE) });
    assert.equal(remote.text, `I see an image, at ${REMOTE_IMAGE}.`);
  },

  async 'by-id'({ ask }, tag) {
    const { response, text: said } = await ask({ input: tag.cue('plain I am Ada.') });
    const { text } = await ask({ previous_response_id: response.id, input: 'case:remember' });
    assert.equal(text, `user: ${tag.cue('plain I am Ada.')} | assistant: ${said} | user: case:remember`);
  },

  async 'by-history'({ ask }, tag) {
    const first = { role: 'user', content: tag.cue('plain I am Ada.') };
    const { response, text: said } = await ask({ input: [first], store: false });
    const { text } = await ask({
      input: [first, ...response.output, { role: 'user', content: 'case:remember' }],
      store: false,
    });
    assert.equal(text, `user: ${first.content} | assistant: ${said} | user: case:remember`);
  },

  async 'item-reference'({ ask }, tag) {
    const { response, text: said } = await ask({ input: tag.cue('plain I am Ada.') });
    const [message] = response.output;
    const { text } = await ask({
      input: [{ type: 'item_reference', id: message.id }, { role: 'user', content: tag.cue('remember') }],
    });
    assert.equal(text, `assistant: ${said} | user: ${tag.cue('remember')}`);
  },

  async 'tool-error'({ ask }, tag) {
    const { response } = await ask({ input: tag.cue('tool-error call:weather{"city": "Oslo"}'), tools: [WEATHER] });
    const input = callsOf(response).map((call) => resultOf(call, 'Error: the station is closed'));
    const { text } = await ask({ previous_response_id: response.id, input, tools: [WEATHER] });
    assert.equal(text, 'The tool failed: Error: the station is closed.');
  },

  async 'tool-image'({ ask }, tag) {
    const { response } = await ask({ input: tag.cue('function call:weather{"city": "Oslo"}'), tools: [WEATHER] });
    const output = [{ type: 'input_text', text: 'a picture' }, { type: 'input_image', image_url: PIXEL_URL }];
    const input = callsOf(response).map((call) => resultOf(call, output));
    const { text } = await ask({ previous_response_id: response.id, input, tools: [WEATHER] });
    assert.ok(text.endsWith(`I see an image, ${PIXEL_SEEN}.`), text);
  },

  async 'unknown-model'(way, tag) {
    await refused(way, { model: 'nobody', input: tag.cue('plain') }, OpenAI.NotFoundError, 404, /nobody/);
  },

  async 'bad-request'(way, tag) {
    const body = { input: tag.cue('plain'), temperature: 99 };
    const error = await refused(way, body, OpenAI.BadRequestError, 400, /temperature/);
    assert.equal(error.param, 'temperature');
    await refused(way, { input: tag.cue('400') }, OpenAI.BadRequestError, 400, /not to the model's liking/);
  },

  async 'backend-429'(way, tag) {
    const error = await refused(way, { input: tag.cue('429') }, OpenAI.RateLimitError, 429, /./);
    assert.equal(error.headers.get('retry-after'), '7');
  },

  async 'backend-500'(way, tag) {
    const error = await refused(way, { input: tag.cue('500') }, OpenAI.InternalServerError, 502, /./);
    assert.equal(typeof error.code, 'string');
  },

  async 'cut-stream'(way, tag) {
    const cut = await failed(way, { input: tag.cue('cut') });
    assert.match(cut.message, /broke off/);
    if (way.streamed) await failed(way, { input: tag.cue('fails') });
  },

  async toolset({ ask }, tag) {
    const tools = [{ type: 'mcp', server_label: 'workshop', require_approval: 'never' }];
    const first = { role: 'user', content: tag.cue('function call:add{"a": 40, "b": 2}') };
    const { response, text } = await ask({ input: [first], tools, store: false });
    assert.equal(text, 'The tool says: 42.');
    assert.deepEqual(response.output.map((item) => item.type), ['mcp_list_tools', 'mcp_call', 'message']);
    assert.equal(response.output[1].output, '42');
    const again = await ask({ input: [first, ...response.output, { role: 'user', content: 'case:remember' }], tools });
    assert.match(again.text, /assistant called \S*add: .*42/);
  },

  /** Approved by the id of the response; denied by one who sends all again, and nothing is stored. */
  async approval({ ask }, tag) {
    const tools = [{ type: 'mcp', server_label: 'workshop', require_approval: 'always' }];
    const prompt = { role: 'user', content: tag.cue('function call:add{"a": 40, "b": 2}') };
    const { response } = await ask({ input: [prompt], tools });
    const request = response.output.at(-1);
    assert.deepEqual([request.type, request.name, JSON.parse(request.arguments)], ['mcp_approval_request', 'add', { a: 40, b: 2 }]);
    const decided = (id, approve, reason) => ({ type: 'mcp_approval_response', approval_request_id: id, approve, reason });
    const done = await ask({ previous_response_id: response.id, input: [decided(request.id, true)], tools });
    assert.equal(done.text, 'The tool says: 42.');
    const [call] = done.response.output.filter((item) => item.type === 'mcp_call');
    assert.equal(call.approval_request_id, request.id);
    const unkept = (await ask({ input: [prompt], tools, store: false })).response;
    const denied = decided(unkept.output.at(-1).id, false, 'No.');
    const last = await ask({ input: [prompt, ...unkept.output, denied], tools, store: false });
    assert.equal(last.text, 'The tool says: The user denied this call. The reason: No..');
  },

  async 'slow-tool'({ ask, streamed }, tag) {
    if (!streamed) throw new NotApplicable(WHOLE);
    const tools = [{ type: 'mcp', server_label: 'workshop', require_approval: 'never' }];
    const { text } = await ask({ input: tag.cue('slow-tool call:slow{"seconds": 4}'), tools }, impatient);
    assert.equal(text, 'The tool says: worked for 4 s.');
  },

  async 'custom-tool'({ ask, streamed }, tag) {
    const tool = { type: 'custom', name: 'note', format: { type: 'grammar', syntax: 'regex', definition: '[a-z ]+' } };
    const { response, events } = await ask({ input: tag.cue('custom call:note <<<a walrus>>>'), tools: [tool] });
    const [call] = response.output.filter((item) => item.type === 'custom_tool_call');
    assert.equal(call.name, 'note');
    assert.equal(call.input, 'a walrus');
    if (streamed) {
      const deltas = events.filter((event) => event.type === 'response.custom_tool_call_input.delta');
      assert.equal(deltas.map((event) => event.delta).join(''), 'a walrus');
    }
    const input = [{ type: 'custom_tool_call_output', call_id: call.call_id, output: 'noted' }];
    const { text } = await ask({ previous_response_id: response.id, input, tools: [tool] });
    assert.equal(text, 'The tool says: noted.');
  },

  async namespace({ ask }, tag) {
    const tools = [{ type: 'namespace', name: 'sky', description: 'All that is above.', tools: [WEATHER] }];
    const { response } = await ask({ input: tag.cue(`function call:weather{"city": "${CITY}"}`), tools });
    const [call] = callsOf(response);
    assert.deepEqual([call.name, call.namespace], ['weather', 'sky']);
    const { text } = await ask({ previous_response_id: response.id, input: answered(response), tools });
    assert.equal(text, `The tool says: sun in ${CITY}.`);
  },

  /** A conflict is what the client tries twice more by itself; it is told that there is no use. */
  async retries({ streamed }, tag) {
    const keyed = { headers: { 'Idempotency-Key': tag.word } };
    await client.responses.create({ model: MODEL, input: tag.cue('plain') }, keyed);
    let attempts = 0;
    const counting = client.withOptions({
      maxRetries: 2,
      fetch: (url, init) => {
        attempts += 1;
        return fetch(url, init);
      },
    });
    const body = { model: MODEL, input: tag.cue('plain Something else.'), stream: streamed };
    const error = await thrownBy(() => counting.responses.create(body, keyed));
    assert.deepEqual([error.status, error.code], [409, 'idempotency_key_reused']);
    assert.equal(attempts, 1);
  },
};

await runAll({ client: 'openai-node', version: versionOf('openai'), ways, cases: { ...cases, ...long } });
