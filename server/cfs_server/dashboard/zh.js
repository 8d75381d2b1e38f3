// Chinese. The keys are the English texts in the code; tests/dashboard/text.test.mjs checks that none is missing.

/** @type {Record<string, string>} */
export const ZH = {
};
