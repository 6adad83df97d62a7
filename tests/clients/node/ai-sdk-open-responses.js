// @ai-sdk/open-responses, with ai.

import { createOpenResponses } from '@ai-sdk/open-responses';
import { runProvider } from './ai-sdk.js';
import { BASE } from './kit.js';

const provider = createOpenResponses({ name: 'antwort', url: `${BASE}/responses`, apiKey: 'none' });

await runProvider({
  client: '@ai-sdk/open-responses',
  model: provider,
  forReasoning: {},
  stateless: {},
  conversation: null,
  // It takes an error's message for its own only when `param` is a text; the standard has null there, too.
  complaint: (error) => JSON.parse(error.responseBody).error.message,
  more: {},
});
