// The AI SDK: generateText and streamText, the same cases for each of its two providers.

import assert from 'node:assert/strict';
import { APICallError, Output, generateText, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';
import {
  ADA,
  MODEL,
  NotApplicable,
  PIXEL,
  PIXEL_SEEN,
  REMOTE_IMAGE,
  runAll,
  thrownBy,
  versionOf,
  weather,
} from './kit.js';

const Person = z.object({ name: z.string(), age: z.number().int() });
const tools = {
  weather: tool({
    description: 'The weather in a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: weather,
  }),
};
const closed = {
  weather: tool({
    description: 'The weather in a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: () => {
      throw new Error('the station is closed');
    },
  }),
};

// ---- two ways to ask: each gives the values of a result, and throws what went wrong ----

const defaults = { maxRetries: 0, stopWhen: isStepCount(5) };

export async function streamed(options) {
  const result = streamText({ ...defaults, ...options, onError: () => {} });
  let spoken = '';
  for await (const part of result.stream) {
    if (part.type === 'error') throw part.error;
    if (part.type === 'text-delta') spoken += part.text;
  }
  const steps = await result.steps;
  assert.equal(steps.map((step) => step.text).join(''), spoken);
  const [text, toolCalls, toolResults, responseMessages, usage, finishReason, warnings] = await Promise.all([
    result.text,
    result.toolCalls,
    result.toolResults,
    result.responseMessages,
    result.usage,
    result.finishReason,
    result.warnings,
  ]);
  const output = options.output ? await result.output : undefined;
  return { steps, text, toolCalls, toolResults, responseMessages, usage, finishReason, warnings, output };
}

const whole = (options) => generateText({ ...defaults, ...options });

/**
 * What the providers differ in: `model` makes a model of a name, `forReasoning` is what it takes to be shown
 * reasoning, `stateless` to have nothing stored, `conversation` to go on from a result, and `complaint` reads what
 * the server said from an error.
 */
function casesOf({ model, forReasoning, stateless, conversation, complaint }) {
  const given = { model: model(MODEL) };
  const reasoningOf = (result) => result.steps.map((step) => step.reasoningText ?? '').join('');

  async function refused({ ask }, options, status, message) {
    const error = await thrownBy(() => ask({ ...given, ...options }));
    assert.ok(APICallError.isInstance(error), `${error?.name}: ${error}`);
    assert.equal(error.statusCode, status);
    assert.match(complaint(error), message);
    return error;
  }

  return {
    async plain({ ask }, tag) {
      const result = await ask({ ...given, prompt: tag.cue('plain hello') });
      assert.equal(result.text, `You said: hello ${tag.word}`);
      assert.equal(result.finishReason, 'stop');
      assert.ok(result.usage.inputTokens > 0 && result.usage.outputTokens > 0);
      assert.deepEqual(result.warnings ?? [], []);
      const told = await ask({ ...given, instructions: 'Be kind.', prompt: tag.cue('instructions') });
      assert.equal(told.text, 'I am told: Be kind.');
    },

    async function({ ask }, tag) {
      const result = await ask({ ...given, tools, prompt: tag.cue('function call:weather{"city": "Oslo"}') });
      assert.deepEqual(result.toolCalls.map((call) => [call.toolName, call.input]), [['weather', { city: 'Oslo' }]]);
      assert.equal(result.steps.length, 2);
      assert.equal(result.steps[0].finishReason, 'tool-calls');
      assert.equal(result.steps[1].text, 'The tool says: sun in Oslo.');
    },

    async parallel({ ask }, tag) {
      const prompt = tag.cue('parallel call:weather{"city": "Oslo"} call:weather{"city": "Rome"}');
      const result = await ask({ ...given, tools, prompt });
      assert.deepEqual(result.toolCalls.map((call) => call.input.city), ['Oslo', 'Rome']);
      assert.equal(result.steps.length, 2);
      assert.equal(result.steps[1].text, 'The tools say: sun in Oslo and sun in Rome.');
    },

    async structured({ ask }, tag) {
      const prompt = tag.cue(`structured ${JSON.stringify(ADA)}`);
      const result = await ask({ ...given, output: Output.object({ schema: Person }), prompt });
      assert.deepEqual(result.output, ADA);
      const [asked] = await tag.asked();
      assert.deepEqual(asked.response_format.json_schema.schema.required, ['name', 'age']);
      const loose = await ask({ ...given, output: Output.json(), prompt });
      assert.deepEqual(loose.output, ADA);
      assert.equal((await tag.asked()).at(-1).response_format.type, 'json_object');
    },

    async reasoning({ ask }, tag) {
      const result = await ask({ ...given, ...forReasoning, prompt: tag.cue('reasoning walrus') });
      assert.equal(reasoningOf(result), `First I think about it: walrus ${tag.word}`);
      assert.equal(result.text, `I have thought about: walrus ${tag.word}`);
      const prompt = tag.cue('reasoning call:weather{"city": "Oslo"}');
      const { steps } = await ask({ ...given, ...forReasoning, tools, prompt });
      assert.equal(steps[1].text, 'The tool says: sun in Oslo. I had thought: First I think about it: weather');
    },

    async image({ ask }, tag) {
      const shown = (data) => {
        const file = { type: 'file', mediaType: 'image/png', data };
        return [{ role: 'user', content: [{ type: 'text', text: tag.cue('image') }, file] }];
      };
      const data = await ask({ ...given, messages: shown(PIXEL) });
      assert.equal(data.text, `I see an image, ${PIXEL_SEEN}.`);
      const remote = await ask({ ...given, messages: shown(new URL(REMOTE_IMAGE)) });
      assert.equal(remote.text, `I see an image, at ${REMOTE_IMAGE}.`);
    },

    async 'by-history'({ ask }, tag) {
      const first = { role: 'user', content: tag.cue('plain I am Ada.') };
      const said = await ask({ ...given, ...stateless, messages: [first] });
      const messages = [first, ...said.responseMessages, { role: 'user', content: 'case:remember' }];
      const result = await ask({ ...given, ...stateless, messages });
      assert.equal(result.text, `user: ${first.content} | assistant: ${said.text} | user: case:remember`);
    },

    async 'by-id'({ ask }, tag) {
      if (!conversation) throw new NotApplicable('the client has no way to name an earlier response');
      const said = await ask({ ...given, prompt: tag.cue('plain I am Ada.') });
      const result = await ask({ ...given, ...conversation(said), prompt: 'case:remember' });
      assert.equal(result.text, `user: ${tag.cue('plain I am Ada.')} | assistant: ${said.text} | user: case:remember`);
    },

    async 'tool-error'({ ask }, tag) {
      const prompt = tag.cue('tool-error call:weather{"city": "Oslo"}');
      const { steps } = await ask({ ...given, tools: closed, prompt });
      assert.match(steps[1].text, /^The tool failed: .*the station is closed/);
    },

    async 'tool-image'({ ask }, tag) {
      const camera = tool({
        description: 'A picture of a place.',
        inputSchema: z.object({}),
        execute: () => PIXEL.toString('base64'),
        toModelOutput: ({ output }) => ({
          type: 'content',
          value: [
            { type: 'text', text: 'a picture' },
            { type: 'file', mediaType: 'image/png', data: { type: 'data', data: output } },
          ],
        }),
      });
      const { steps } = await ask({ ...given, tools: { camera }, prompt: tag.cue('function call:camera{}') });
      assert.match(steps[1].text, new RegExp(`^The tool says: a picture[^]* I see an image, ${PIXEL_SEEN}\\.$`));
    },

    async 'unknown-model'(way, tag) {
      await refused(way, { model: model('nobody'), prompt: tag.cue('plain') }, 404, /nobody/);
    },

    async 'bad-request'(way, tag) {
      await refused(way, { prompt: tag.cue('plain'), temperature: 99 }, 400, /temperature/);
      await refused(way, { prompt: tag.cue('400') }, 400, /not to the model's liking/);
    },

    async 'backend-429'(way, tag) {
      const error = await refused(way, { prompt: tag.cue('429') }, 429, /./);
      assert.equal(error.responseHeaders['retry-after'], '7');
    },

    async 'backend-500'(way, tag) {
      await refused(way, { prompt: tag.cue('500') }, 502, /backend/);
    },

    async 'cut-stream'({ ask }, tag) {
      const error = await thrownBy(() => ask({ ...given, prompt: tag.cue('cut') }));
      assert.match(`${error.message}`, /broke off/);
    },
  };
}

export async function runProvider({ client, more, ...provider }) {
  await runAll({
    client,
    version: versionOf(client),
    ways: [
      { label: 'generateText', streamed: false, ask: whole },
      { label: 'streamText', streamed: true, ask: streamed },
    ],
    cases: { ...casesOf(provider), ...more },
  });
}
