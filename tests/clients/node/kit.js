// What the runners share: where the server and the scripted model are, and one line of JSON for each case.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

export const BASE = process.env.ANTWORT_URL;
/** The same server, which is brought nothing of the reasoning but its seal. */
export const BARE_BASE = process.env.ANTWORT_BARE_URL;
export const MODEL = process.env.ANTWORT_MODEL;
export const KNOWN_MODEL = process.env.ANTWORT_KNOWN_MODEL;
/** One whose context is soon full. */
export const SMALL_MODEL = process.env.ANTWORT_SMALL_MODEL;
const REQUESTS = process.env.BACKEND_REQUESTS;
const PATIENCE_MS = 30_000;

export const CITY = 'Oslo';
export const WEATHER = {
  type: 'function',
  name: 'weather',
  description: 'The weather in a city.',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  },
  strict: true,
};
export const weather = ({ city }) => `sun in ${city}`;

/** One pixel. */
export const PIXEL = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==',
  'base64',
);
export const PIXEL_URL = `data:image/png;base64,${PIXEL.toString('base64')}`;
const PIXEL_DIGEST = createHash('sha256').update(PIXEL).digest('hex').slice(0, 12);
/** What the model says of it when it has seen all of it. */
export const PIXEL_SEEN = `image/png of ${PIXEL.length} bytes, ${PIXEL_DIGEST}`;
/** Nobody fetches it. */
export const REMOTE_IMAGE = 'https://images.example/walrus.png';

export const ADA = { name: 'Ada', age: 36 };

export const versionOf = (name) =>
  JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url))).version;

/** A word that stands in what one case asks and nowhere else. */
export class Tag {
  static #count = 0;

  constructor(client, label) {
    Tag.#count += 1;
    this.word = `tag-${client}-${label}-${Tag.#count}`.replaceAll(/[^\w-]+/g, '-');
  }

  cue(text) {
    return `case:${text} ${this.word}`;
  }

  /** What the model was asked with this word in it, oldest first. */
  async asked() {
    const found = await fetch(`${REQUESTS}?contains=${this.word}`);
    return (await found.json()).requests.map((request) => request.body);
  }
}

// ---- long histories: see lasting.py ----

/** Tokens from which on a server that was told so compacts. */
export const THRESHOLD = 1000;
const PAST_THRESHOLD = 2500;
const TURNS = 10;
export const sand = (words) => Array(words).fill('sand').join(' ');

/** A turn that is worth compacting, and a question about it. */
export const pastThreshold = (tag) => [
  { role: 'user', content: `${tag.cue('plain My word is walrus.')} ${sand(PAST_THRESHOLD)}` },
  { role: 'assistant', content: `You said: My word is walrus. ${tag.word}` },
  { role: 'user', content: 'case:remember' },
];

/** More than the small model's context, a system's message first and a question last. */
export const tooLong = (tag) => [
  { role: 'system', content: 'Be kind.' },
  ...Array.from({ length: TURNS }, (_, number) => [
    { role: 'user', content: `Number ${number} is the first. ${tag.word} ${sand(50)}` },
    { role: 'assistant', content: `Number ${number} it is. ${sand(50)}` },
  ]).flat(),
  { role: 'user', content: 'case:remember' },
];

/** The system's message and the newest turns are there; the oldest are not. */
export function checkCut(text) {
  assert.match(text, /Be kind\./);
  assert.match(text, new RegExp(`Number ${TURNS - 1} it is\\.`));
  assert.doesNotMatch(text, /Number 0 is the first\./);
}

/** What was said is still known, and what is sent for it is short. */
export async function checkCompacted(tag, text) {
  assert.match(text, /walrus/);
  const asked = JSON.stringify((await tag.asked()).at(-1));
  assert.ok(asked.split('sand').length < PAST_THRESHOLD, 'nothing was left out');
}

/** The client has no way to say this. */
export class NotApplicable extends Error {}

/** Why nobody can help who waits for the whole answer of a slow tool. */
export const WHOLE =
  "a whole answer comes at once: the client's timeout is for all of it, and no sign of life can make it longer";

/** Node's own fetch, which gives a stream up after a silence of five minutes, with less patience. */
export async function impatientFetch(url, init) {
  await fetch('data:,'); // only then is the dispatcher there
  const { constructor: Agent } = globalThis[Symbol.for('undici.globalDispatcher.1')];
  return fetch(url, { ...init, dispatcher: new Agent({ bodyTimeout: 1500 }) });
}

/** What `attempt` throws; it is an error of the case when it throws nothing. */
export async function thrownBy(attempt) {
  try {
    await attempt();
  } catch (error) {
    if (error instanceof assert.AssertionError) throw error;
    return error;
  }
  return assert.fail('nothing was thrown');
}

function within(milliseconds, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end within ${milliseconds} ms`)), milliseconds);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

async function inEachWay(ways, run, client, name) {
  for (const way of ways) {
    try {
      await within(PATIENCE_MS, run(way, new Tag(client, `${name}-${way.label}`)));
    } catch (error) {
      if (error instanceof NotApplicable) return { outcome: 'n/a', detail: error.message };
      return { outcome: 'failed', detail: `${way.label}: ${told(error)}` };
    }
  }
  return { outcome: 'ok', detail: '' };
}

/** The error in one line: what it says, and where in the case it was. */
function told(error) {
  const lines = `${error?.stack ?? error}`.split('\n').map((line) => line.trim());
  const at = lines.findIndex((line) => line.startsWith('at '));
  const place = lines.find((line) => line.startsWith('at ') && !/node_modules|kit\.js|node:/.test(line)) ?? '';
  return [...lines.slice(0, at < 0 ? lines.length : at), place.replace(/file:.*\//, '')].filter(Boolean).join(' ');
}

/**
 * Runs each case in each way and prints one line of JSON for each case, whole and streamed.
 *
 * A way has a label, says whether it is streamed, and holds what a case asks with. With a word on the command line,
 * only that case runs; with several, separated by commas, only those.
 */
export async function runAll({ client, version, ways, cases }) {
  const only = process.argv[2]?.split(',');
  for (const [name, run] of Object.entries(cases)) {
    if (only && !only.includes(name)) continue;
    for (const streamed of [false, true]) {
      const outcome = await inEachWay(ways.filter((way) => way.streamed === streamed), run, client, name);
      console.log(JSON.stringify({ client, version, case: name, streamed, ...outcome }));
    }
  }
  process.exit(0);
}
