// @ai-sdk/openai, with ai.

import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { runProvider } from './ai-sdk.js';
import { APICallError } from 'ai';
import {
  BARE_BASE,
  BASE,
  KNOWN_MODEL,
  MODEL,
  NotApplicable,
  SMALL_MODEL,
  THRESHOLD,
  WHOLE,
  checkCompacted,
  checkCut,
  impatientFetch,
  pastThreshold,
  thrownBy,
  tooLong,
} from './kit.js';

const openai = createOpenAI({ baseURL: BASE, apiKey: 'none' });
const bare = createOpenAI({ baseURL: BARE_BASE, apiKey: 'none' });
const impatient = createOpenAI({ baseURL: BASE, apiKey: 'none', fetch: impatientFetch });
const options = (given) => ({ providerOptions: { openai: given } });
const model = openai.responses(MODEL);

const more = {
  async 'item-reference'({ ask }, tag) {
    const first = { role: 'user', content: tag.cue('plain I am Ada.') };
    const said = await ask({ model, messages: [first] });
    const messages = [first, ...said.responseMessages, { role: 'user', content: tag.cue('plain And who am I?') }];
    const sent = [];
    const watching = createOpenAI({
      baseURL: BASE,
      apiKey: 'none',
      fetch: (url, init) => {
        sent.push(JSON.parse(init.body));
        return fetch(url, init);
      },
    });
    await ask({ model: watching.responses(MODEL), messages });
    assert.deepEqual(sent[0].input.map((item) => item.type ?? item.role), ['user', 'item_reference', 'user']);
    assert.equal(sent[0].previous_response_id, undefined);
    const asked = (await tag.asked()).at(-1);
    assert.deepEqual(asked.messages.map((message) => message.role), ['user', 'assistant', 'user']);
    assert.equal(asked.messages[1].content, said.text);
  },

  async 'sealed-reasoning'({ ask }, tag) {
    const known = { model: bare.responses(KNOWN_MODEL), ...options({ store: false, reasoningSummary: 'auto' }) };
    const first = { role: 'user', content: tag.cue('reasoning walrus') };
    const said = await ask({ ...known, messages: [first] });
    const messages = [first, ...said.responseMessages, { role: 'user', content: 'case:remember' }];
    const { text } = await ask({ ...known, messages });
    assert.match(text, /assistant thought: First I think about it: walrus/);
  },

  async toolset({ ask }, tag) {
    const workshop = openai.tools.mcp({ serverLabel: 'workshop', connectorId: 'workshop' });
    const tools = { mcp: workshop };
    const first = { role: 'user', content: tag.cue('function call:add{"a": 40, "b": 2}') };
    const result = await ask({ model, tools, messages: [first] });
    assert.equal(result.text, 'The tool says: 42.');
    assert.equal(result.steps.length, 1);
    const [used] = result.toolResults;
    assert.deepEqual([used.output.serverLabel, used.output.name, used.output.output], ['workshop', 'add', '42']);
    const messages = [first, ...result.responseMessages, { role: 'user', content: 'case:remember' }];
    const again = await ask({ model, tools, messages });
    assert.match(again.text, /assistant called \S*add: .*42.*assistant: The tool says: 42\./s);
  },

  /** The SDK names the request by `item_reference`, and the run by the request. */
  async approval({ ask }, tag) {
    const workshop = openai.tools.mcp({ serverLabel: 'workshop', connectorId: 'workshop', requireApproval: 'always' });
    const tools = { mcp: workshop };
    for (const [approved, told] of [[true, '42'], [false, 'The user denied this call.']]) {
      const first = { role: 'user', content: tag.cue('function call:add{"a": 40, "b": 2}') };
      const asked = await ask({ model, tools, messages: [first] });
      const [request] = asked.steps.at(-1).content.filter((part) => part.type === 'tool-approval-request');
      assert.equal(request.toolCall.toolName, 'mcp.add');
      assert.deepEqual(request.toolCall.input, { a: 40, b: 2 });
      const decision = { type: 'tool-approval-response', approvalId: request.approvalId, approved, providerExecuted: true };
      const messages = [first, ...asked.responseMessages, { role: 'tool', content: [decision] }];
      const done = await ask({ model, tools, messages });
      assert.equal(done.text, `The tool says: ${told}.`);
      const later = [...messages, ...done.responseMessages, { role: 'user', content: 'case:remember' }];
      const again = await ask({ model, tools, messages: later });
      assert.match(again.text, new RegExp(`assistant called \\S*add: .*tool: ${told}`, 's'));
    }
  },

  async 'slow-tool'({ ask, streamed }, tag) {
    if (!streamed) throw new NotApplicable(WHOLE);
    const workshop = openai.tools.mcp({ serverLabel: 'workshop', connectorId: 'workshop' });
    const prompt = tag.cue('slow-tool call:slow{"seconds": 4}');
    const result = await ask({ model: impatient.responses(MODEL), tools: { mcp: workshop }, prompt });
    assert.equal(result.text, 'The tool says: worked for 4 s.');
  },

  async 'custom-tool'({ ask }, tag) {
    const note = openai.tools.customTool({
      description: 'Keeps a note.',
      format: { type: 'grammar', syntax: 'regex', definition: '[a-z ]+' },
      execute: (input) => `noted: ${input}`,
    });
    const prompt = tag.cue('custom call:note <<<a walrus>>>');
    const { steps, toolCalls } = await ask({ model, tools: { note }, prompt });
    assert.equal(toolCalls[0].input, 'a walrus');
    assert.equal(steps[1].text, 'The tool says: noted: a walrus.');
  },

  async websocket() {
    throw new NotApplicable('the client speaks to the Responses API over HTTP alone');
  },

  /** The SDK continues a conversation and leaves making it to others. */
  async conversation({ ask }, tag) {
    const made = await (await fetch(`${BASE}/conversations`, { method: 'POST' })).json();
    const given = { model, ...options({ conversation: made.id }) };
    const first = await ask({ ...given, prompt: tag.cue('plain I am Ada.') });
    const { text } = await ask({ ...given, prompt: 'case:remember' });
    assert.equal(text, `user: ${tag.cue('plain I am Ada.')} | assistant: ${first.text} | user: case:remember`);
  },

  async compaction({ ask }, tag) {
    const history = pastThreshold(tag).slice(0, -1);
    const compacted = await ask({ model, messages: history, ...options({ store: false, compactionTrigger: true }) });
    assert.equal(compactions(compacted), 1);
    const messages = [...history, ...compacted.responseMessages, { role: 'user', content: 'case:remember' }];
    const { text } = await ask({ model, messages, ...options({ store: false }) });
    await checkCompacted(tag, text);
  },

  async 'auto-compaction'({ ask }, tag) {
    const managed = options({ store: false, contextManagement: [{ type: 'compaction', compactThreshold: THRESHOLD }] });
    const history = pastThreshold(tag);
    const first = await ask({ model, messages: history, ...managed });
    assert.equal(compactions(first), 1);
    await checkCompacted(tag, first.text);
    const messages = [...history, ...first.responseMessages, { role: 'user', content: 'case:remember' }];
    await checkCompacted(tag, (await ask({ model, messages, ...managed })).text);
  },

  async 'input-tokens'() {
    throw new NotApplicable('the client counts tokens by itself, or not at all');
  },

  async truncation({ ask }, tag) {
    const [system, ...messages] = tooLong(tag);
    const given = { model: openai.responses(SMALL_MODEL), instructions: system.content, messages };
    checkCut((await ask({ ...given, ...options({ store: false, truncation: 'auto' }) })).text);
    const error = await thrownBy(() => ask({ ...given, ...options({ store: false, truncation: 'disabled' }) }));
    assert.ok(APICallError.isInstance(error), `${error}`);
    assert.match(error.responseBody, /context_length_exceeded/);
  },
};

/** How many compactions there are among what a result gives back. */
function compactions(result) {
  const parts = result.responseMessages.flatMap((message) => message.content);
  return parts.filter((part) => part.type === 'custom' && part.kind === 'openai.compaction').length;
}

await runProvider({
  client: '@ai-sdk/openai',
  model: (name) => openai.responses(name),
  forReasoning: options({ forceReasoning: true, reasoningEffort: 'low', reasoningSummary: 'auto' }),
  stateless: options({ store: false }),
  conversation: (result) => options({ previousResponseId: result.steps.at(-1).providerMetadata.openai.responseId }),
  complaint: (error) => error.message,
  more,
});
